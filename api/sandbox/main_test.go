package sandbox

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/forkvm/forkvm/guestagent/agent"
)

var hammerFor = flag.Duration("hammer", 2*time.Second, "how long TestHammer goes on")

func hammerTime() time.Duration { return *hammerFor }

// The test binary is the agent of its guests unless FORKVM_TEST_AGENT names
// one.
func TestMain(m *testing.M) {
	agent.Main()
	os.Exit(m.Run())
}
