package sandbox

import (
	"fmt"
	"os"
	"testing"

	"github.com/forkvm/forkvm/guestagent/agent"
)

// The test binary is the agent of its guests unless FORKVM_TEST_AGENT names
// one.
func TestMain(m *testing.M) {
	agent.Main()
	jailMain()
	if os.Getenv(crashDir) != "" {
		fmt.Fprintln(os.Stderr, crashServer())
		os.Exit(1)
	}
	os.Exit(m.Run())
}
