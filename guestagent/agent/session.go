package agent

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// maxKillRounds bounds the search for processes to kill. Each round finds what
// was forked since the last; a stopped process forks no more, so only a fork
// that was under way at the stop costs another round.
const maxKillRounds = 32

// killSession kills every process of session sid and every descendant of one,
// including those that moved to another group or session.
//
// It stops what it finds before it kills anything: the death of a parent would
// hand its children to PID 1 and hide where they came from. A process that
// left the session *and* whose parent is gone already cannot be found this
// way; a cgroup finds that one too (see cgroup.go).
func killSession(sid int) {
	found := make(map[int]bool)
	for range maxKillRounds {
		fresh := false
		for _, pid := range sessionMembers(sid, found) {
			if !found[pid] {
				found[pid] = true
				fresh = true
				_ = syscall.Kill(pid, syscall.SIGSTOP)
			}
		}
		if !fresh {
			break
		}
	}
	for pid := range found {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// signalJobs sends a signal to what a shell has put in process groups of their
// own: all of session sid but the group that its leader is in.
func signalJobs(sid int, sig syscall.Signal) {
	for _, st := range processes() {
		if st.session == sid && st.group != sid {
			_ = syscall.Kill(st.pid, sig)
		}
	}
}

// procStat is what we need of /proc/PID/stat, see proc(5).
type procStat struct {
	pid, ppid, group, session int
	zombie                    bool
}

// sessionMembers returns the processes that are in session sid, or descend
// from one that is or from one in known.
func sessionMembers(sid int, known map[int]bool) []int {
	stats := processes()
	children := make(map[int][]int)
	member := make(map[int]bool)
	var todo []int
	for _, st := range stats {
		children[st.ppid] = append(children[st.ppid], st.pid)
		if st.session == sid || known[st.pid] {
			member[st.pid] = true
			todo = append(todo, st.pid)
		}
	}
	for len(todo) > 0 {
		pid := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, c := range children[pid] {
			if !member[c] {
				member[c] = true
				todo = append(todo, c)
			}
		}
	}
	var out []int
	for _, st := range stats {
		if member[st.pid] && !st.zombie {
			out = append(out, st.pid)
		}
	}
	return out
}

// processes reads every /proc/PID/stat.
func processes() []procStat {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var out []procStat
	for _, name := range names {
		if _, err := strconv.Atoi(name); err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", name, "stat"))
		if err != nil {
			continue // it ended meanwhile
		}
		if st, ok := parseStat(b); ok {
			out = append(out, st)
		}
	}
	return out
}

// parseStat parses "pid (comm) state ppid pgrp session …"; comm may hold
// spaces and parentheses.
func parseStat(b []byte) (procStat, bool) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 1 || end < open {
		return procStat{}, false
	}
	f := bytes.Fields(b[end+1:])
	if len(f) < 4 {
		return procStat{}, false
	}
	pid, err1 := strconv.Atoi(string(bytes.TrimSpace(b[:open])))
	ppid, err2 := strconv.Atoi(string(f[1]))
	group, err3 := strconv.Atoi(string(f[2]))
	sid, err4 := strconv.Atoi(string(f[3]))
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil {
		return procStat{}, false
	}
	return procStat{pid: pid, ppid: ppid, group: group, session: sid, zombie: f[0][0] == 'Z'}, true
}
