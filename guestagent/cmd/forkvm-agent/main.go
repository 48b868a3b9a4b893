// Command forkvm-agent is a guest's /init and nothing else: the agent with its
// commands. A guest boots with any program that calls agent.Main; this is the
// smallest of them.
package main

import (
	"fmt"
	"os"

	"github.com/forkvm/forkvm/guestagent/agent"
)

func main() {
	agent.Main()
	fmt.Fprintln(os.Stderr, "forkvm-agent: this is the /init of a guest, and of no use elsewhere")
	os.Exit(2)
}
