package agent

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/forkvm/forkvm/guestagent/proto"
)

// maxAccounts is the most bytes of /etc/passwd or /etc/group that are read.
const maxAccounts = 1 << 20

// account is whom a command runs as.
type account struct {
	cred *syscall.Credential // nil: as the agent
	home string
	name string
}

// lookupAccount resolves "user", "uid", "user:group" and "uid:gid" in the
// guest's own /etc/passwd and /etc/group. A numeric id needs no entry there.
func lookupAccount(spec string) (account, error) {
	if spec == "" {
		return account{home: "/root", name: "root"}, nil
	}
	name, group, hasGroup := strings.Cut(spec, ":")
	acc, err := lookupUser(name)
	if err != nil {
		return account{}, err
	}
	if hasGroup {
		gid, err := lookupGroup(group)
		if err != nil {
			return account{}, err
		}
		acc.cred.Gid = gid
	}
	acc.cred.Groups = supplementary(acc.name)
	acc.cred.NoSetGroups = os.Getuid() != 0 // only root may, and needs to
	return acc, nil
}

func lookupUser(name string) (account, error) {
	uid, numeric := parseID(name)
	var acc account
	eachAccount("/etc/passwd", func(f []string) bool {
		if len(f) < 6 {
			return true
		}
		id, ok := parseID(f[2])
		gid, ok2 := parseID(f[3])
		if !ok || !ok2 || (f[0] != name && !(numeric && id == uid)) {
			return true
		}
		acc = account{name: f[0], home: f[5], cred: &syscall.Credential{Uid: id, Gid: gid}}
		return false
	})
	switch {
	case acc.cred != nil:
		return acc, nil
	case numeric:
		return account{home: "/", cred: &syscall.Credential{Uid: uid, Gid: uid}}, nil
	case name == "root":
		return account{name: "root", home: "/root", cred: &syscall.Credential{}}, nil
	}
	return account{}, &proto.Error{
		Code: proto.CodeStart, Stage: proto.StageUser, Errno: int(syscall.ENOENT),
		Message: fmt.Sprintf("no user %q", name),
	}
}

func lookupGroup(name string) (uint32, error) {
	if gid, ok := parseID(name); ok {
		return gid, nil
	}
	var gid uint32
	found := false
	eachAccount("/etc/group", func(f []string) bool {
		if len(f) >= 3 && f[0] == name {
			gid, found = parseID(f[2])
		}
		return !found
	})
	if !found {
		return 0, &proto.Error{
			Code: proto.CodeStart, Stage: proto.StageUser, Errno: int(syscall.ENOENT),
			Message: fmt.Sprintf("no group %q", name),
		}
	}
	return gid, nil
}

// supplementary returns the groups that list the user as a member.
func supplementary(user string) []uint32 {
	var gids []uint32
	if user == "" {
		return nil
	}
	eachAccount("/etc/group", func(f []string) bool {
		if len(f) < 4 {
			return true
		}
		for m := range strings.SplitSeq(f[3], ",") {
			if gid, ok := parseID(f[2]); ok && m == user {
				gids = append(gids, gid)
			}
		}
		return true
	})
	return gids
}

func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n != 1<<32-1 // (uid_t)-1 means "unchanged"
}

// eachAccount calls f with the fields of each line until f returns false.
func eachAccount(file string, f func([]string) bool) {
	in, err := os.Open(file)
	if err != nil {
		return
	}
	defer in.Close()
	for sc := bufio.NewScanner(io.LimitReader(in, maxAccounts)); sc.Scan(); {
		if !f(strings.Split(sc.Text(), ":")) {
			return
		}
	}
}
