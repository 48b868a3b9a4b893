package inside

import (
	"context"
	"net"
	"os"
	"strconv"

	"github.com/forkvm/forkvm/guestagent/agent"
)

// commandsCgroup is the cgroup below which each command gets its own, so that ending a command ends
// whatever it left behind.
const commandsCgroup = "/sys/fs/cgroup/commands"

// serve answers the host until its listener fails. The first heartbeat says that it listens.
func serve(port int) error {
	if err := os.Mkdir(commandsCgroup, 0o755); err != nil {
		return err
	}
	l, err := net.Listen("tcp4", ":"+strconv.Itoa(port))
	if err != nil {
		return err
	}
	if err := startHeartbeat(); err != nil {
		return err
	}
	return agent.Serve(context.Background(), l, agent.Options{
		Machine:   agent.ThisMachine,
		ReapAll:   true,
		CgroupDir: commandsCgroup,
	})
}
