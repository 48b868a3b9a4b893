// Command page writes docs/semantics.md.
package main

import (
	"log"
	"os"

	"github.com/forkvm/forkvm/api/internal/promises"
)

func main() {
	if err := os.WriteFile(os.Args[1], []byte(promises.Page()), 0o644); err != nil {
		log.Fatal(err)
	}
}
