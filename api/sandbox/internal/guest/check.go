package guest

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/guestagent/proto"
)

const (
	maxTimeout = 86400 // seconds of a command, and of its silence
	maxUser    = 256   // bytes of a user and group
	// maxCommand bounds what says what to run, which is one frame to the agent.
	// perString is what a string takes besides its bytes.
	maxCommand = proto.MaxPayload - 4096
	perString  = 5
)

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// CheckExec tells what is wrong with a request of [Guest.Exec].
func CheckExec(r api.ExecRequest) error {
	if r.MaxOutputBytes < 0 || r.MaxOutputBytes > api.MaxOutput {
		return badField("max_output_bytes", "%d is not within 0 and %d", r.MaxOutputBytes, api.MaxOutput)
	}
	return checkCommand(r.Command)
}

// CheckStart tells what is wrong with a request of [Guest.Run] or
// [Guest.Start].
func CheckStart(r api.StartRequest) error {
	if err := checkSeconds("idle_timeout_seconds", r.IdleTimeoutSeconds); err != nil {
		return err
	}
	return checkCommand(r.Command)
}

func checkCommand(c api.Command) error {
	switch {
	case len(c.Argv) == 0:
		return badField("argv", "empty")
	case c.Argv[0] == "":
		return badField("argv", "names no program")
	case len(c.Argv) > proto.MaxArgs:
		return badField("argv", "more than %d entries", proto.MaxArgs)
	case slices.ContainsFunc(c.Argv, hasNUL):
		return badField("argv", "has a NUL byte")
	case c.Cwd != "" && c.Cwd[0] != '/':
		return badField("cwd", "%.80q is not absolute", c.Cwd)
	case len(c.Cwd) > maxPath:
		return badField("cwd", "longer than %d bytes", maxPath)
	case hasNUL(c.Cwd):
		return badField("cwd", "has a NUL byte")
	case len(c.User) > maxUser:
		return badField("user", "longer than %d bytes", maxUser)
	case hasNUL(c.User):
		return badField("user", "has a NUL byte")
	}
	if err := checkEnv(c.EnvVars); err != nil {
		return err
	}
	if commandSize(c) > maxCommand {
		return badField("argv", "more than %d bytes, with env_vars", maxCommand)
	}
	return checkSeconds("timeout_seconds", c.TimeoutSeconds)
}

func checkEnv(env map[string]string) error {
	if len(env) > api.MaxEnvVars {
		return badField("env_vars", "more than %d entries", api.MaxEnvVars)
	}
	for k, v := range env {
		switch {
		case !envName.MatchString(k):
			return badField("env_vars", "%.80q is no name of a variable", k)
		case hasNUL(v):
			return badField("env_vars", "%.80s has a NUL byte", k)
		case len(k)+len(v) > api.MaxMapEntry:
			return badField("env_vars", "%.80s has more than %d bytes", k, api.MaxMapEntry)
		}
	}
	return nil
}

// commandSize is about how long the message is by which the agent is told.
func commandSize(c api.Command) int {
	n := len(c.Cwd) + len(c.User)
	for _, a := range c.Argv {
		n += len(a) + perString
	}
	for k, v := range c.EnvVars {
		n += len(k) + len("=") + len(v) + perString
	}
	return n
}

func checkSeconds(field string, o api.Opt[int64]) error {
	if v := o.Value(); v != nil && (*v < 0 || *v > maxTimeout) {
		return badField(field, "%d is not within 0 and %d", *v, maxTimeout)
	}
	return nil
}

// seconds is a time-out that was checked: absent if it was not given, and 0 for
// none.
func seconds(o api.Opt[int64], absent int64) time.Duration {
	v := o.Or(&absent)
	if v == nil {
		return 0
	}
	return time.Duration(*v) * time.Second
}

func hasNUL(s string) bool { return strings.IndexByte(s, 0) >= 0 }
