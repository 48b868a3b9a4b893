package sandbox

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/forkvm/forkvm/guestagent/agent"
)

// sleeper is the environment variable that makes the test binary a command which
// is there for long.
const sleeper = "FORKVM_TEST_SLEEPER"

// The test binary is the agent of its guests unless FORKVM_TEST_AGENT names
// one.
func TestMain(m *testing.M) {
	agent.Main()
	jailMain()
	if os.Getenv(sleeper) != "" {
		time.Sleep(time.Hour)
	}
	if os.Getenv(crashDir) != "" {
		fmt.Fprintln(os.Stderr, crashServer())
		os.Exit(1)
	}
	code := m.Run()
	if err := closeCommon(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}
