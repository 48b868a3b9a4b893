package applet

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func trueCmd(*stdio, []string) error  { return nil }
func falseCmd(*stdio, []string) error { return exitCode(1) }

func sleep(_ *stdio, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	var total time.Duration
	for _, a := range args {
		if a[len(a)-1] >= '0' && a[len(a)-1] <= '9' || a[len(a)-1] == '.' {
			a += "s"
		}
		if a == "infinity" {
			select {}
		}
		factor := time.Duration(1)
		if rest, ok := strings.CutSuffix(a, "d"); ok {
			a, factor = rest+"h", 24
		}
		d, err := time.ParseDuration(a)
		if err != nil || d < 0 {
			return fmt.Errorf("bad time %q", a)
		}
		total += d * factor
	}
	time.Sleep(total)
	return nil
}

func uname(s *stdio, args []string) error {
	o, err := parse(args, "asnrvmpo")
	if err != nil {
		return err
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err
	}
	var f []string
	for _, part := range []struct {
		flag  byte
		value []byte
	}{{'s', u.Sysname[:]}, {'n', u.Nodename[:]}, {'r', u.Release[:]}, {'v', u.Version[:]}, {'m', u.Machine[:]}, {'o', []byte("GNU/Linux")}} {
		if o.has('a') || o.has(part.flag) || len(o.set) == 0 && part.flag == 's' {
			f = append(f, unix.ByteSliceToString(part.value))
		}
	}
	_, err = fmt.Fprintln(s.out, strings.Join(f, " "))
	return err
}

func ps(s *stdio, _ []string) error {
	fmt.Fprintf(s.out, "%7s %7s %1s %8s %s\n", "PID", "PPID", "S", "RSS", "COMMAND")
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	slices.SortFunc(dirs, func(a, b string) int {
		x, _ := strconv.Atoi(filepath.Base(a))
		y, _ := strconv.Atoi(filepath.Base(b))
		return x - y
	})
	for _, d := range dirs {
		st, err := os.ReadFile(filepath.Join(d, "stat"))
		if err != nil {
			continue // it has ended
		}
		text := string(st)
		open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
		f := strings.Fields(text[max(0, end+1):])
		if open < 0 || end < open || len(f) < 22 {
			continue
		}
		cmd := "[" + text[open+1:end] + "]"
		if line, err := os.ReadFile(filepath.Join(d, "cmdline")); err == nil && len(line) > 0 {
			cmd = strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " "))
		}
		pages, _ := strconv.Atoi(f[21])
		fmt.Fprintf(s.out, "%7s %7s %1s %8d %s\n", filepath.Base(d), f[1], f[0], pages*os.Getpagesize()/1024, cmd)
	}
	return nil
}

// lookupID returns the id of a name in /etc/passwd or /etc/group. A number is
// itself.
func lookupID(file, name string) (int, error) {
	if n, err := strconv.Atoi(name); err == nil {
		return n, nil
	}
	for f := range accounts(file) {
		if f[0] == name {
			return strconv.Atoi(f[2])
		}
	}
	if name == "root" {
		return 0, nil
	}
	return 0, fmt.Errorf("%s: no %q", file, name)
}

// lookupName returns the name of an id, or its digits.
func lookupName(file string, id int) string {
	for f := range accounts(file) {
		if f[2] == strconv.Itoa(id) {
			return f[0]
		}
	}
	if id == 0 {
		return "root"
	}
	return strconv.Itoa(id)
}

// accounts yields the fields of each line of /etc/passwd or /etc/group.
func accounts(file string) func(func([]string) bool) {
	return func(yield func([]string) bool) {
		f, err := os.Open(file)
		if err != nil {
			return
		}
		defer f.Close()
		_ = eachLine(io.LimitReader(f, 1<<20), func(line string) bool {
			fields := strings.Split(line, ":")
			return len(fields) < 3 || yield(fields)
		})
	}
}

func id(s *stdio, args []string) error {
	o, err := parse(args, "ugn")
	if err != nil {
		return err
	}
	uid, gid := os.Getuid(), os.Getgid()
	user, group := lookupName("/etc/passwd", uid), lookupName("/etc/group", gid)
	switch {
	case o.has('u') && o.has('n'):
		fmt.Fprintln(s.out, user)
	case o.has('u'):
		fmt.Fprintln(s.out, uid)
	case o.has('g') && o.has('n'):
		fmt.Fprintln(s.out, group)
	case o.has('g'):
		fmt.Fprintln(s.out, gid)
	default:
		fmt.Fprintf(s.out, "uid=%d(%s) gid=%d(%s)\n", uid, user, gid, group)
	}
	return nil
}

func whoami(s *stdio, _ []string) error {
	_, err := fmt.Fprintln(s.out, lookupName("/etc/passwd", os.Geteuid()))
	return err
}

func hostname(s *stdio, args []string) error {
	if len(args) > 0 {
		return unix.Sethostname([]byte(args[0]))
	}
	name, err := os.Hostname()
	fmt.Fprintln(s.out, name)
	return err
}

func env(s *stdio, args []string) error {
	environ := os.Environ()
	for len(args) > 0 {
		switch a := args[0]; {
		case a == "-i":
			environ = nil
		case a == "-u" && len(args) > 1:
			args = args[1:]
			environ = slices.DeleteFunc(environ, func(kv string) bool { return strings.HasPrefix(kv, args[0]+"=") })
		case strings.Contains(a, "="):
			environ = append(environ, a)
		default:
			return replace(args, environ)
		}
		args = args[1:]
	}
	for _, kv := range environ {
		fmt.Fprintln(s.out, kv)
	}
	return nil
}

// replace makes this process another program.
func replace(args, environ []string) error {
	path, err := exec.LookPath(args[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitCode(127)
	}
	err = withTimerSlack(func() error { return unix.Exec(path, args, environ) })
	return &os.PathError{Op: "exec", Path: path, Err: err}
}

func printenv(s *stdio, args []string) error {
	if len(args) == 0 {
		return env(s, nil)
	}
	for _, key := range args {
		v, ok := os.LookupEnv(key)
		if !ok {
			return exitCode(1)
		}
		fmt.Fprintln(s.out, v)
	}
	return nil
}

func pwd(s *stdio, _ []string) error {
	dir, err := os.Getwd()
	fmt.Fprintln(s.out, dir)
	return err
}

func kill(s *stdio, args []string) error {
	sig := syscall.SIGTERM
	switch {
	case len(args) > 0 && args[0] == "-l":
		for n := 1; n <= 31; n++ {
			fmt.Fprintf(s.out, "%2d %s\n", n, unix.SignalName(syscall.Signal(n)))
		}
		return nil
	case len(args) > 1 && args[0] == "-s":
		args = append([]string{"-" + args[1]}, args[2:]...)
	}
	if len(args) > 1 && strings.HasPrefix(args[0], "-") {
		name := strings.ToUpper(strings.TrimPrefix(args[0][1:], "SIG"))
		n, err := strconv.Atoi(name)
		if err != nil {
			n = int(unix.SignalNum("SIG" + name))
		}
		if n == 0 && name != "0" || n < 0 || n > 64 {
			return fmt.Errorf("unknown signal %q", name)
		}
		sig, args = syscall.Signal(n), args[1:]
	}
	if len(args) == 0 {
		return errUsage
	}
	var errs []error
	for _, a := range args {
		if a == "--" {
			continue
		}
		pid, err := strconv.Atoi(a)
		if err == nil {
			err = syscall.Kill(pid, sig)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", a, err))
		}
	}
	return errors.Join(errs...)
}

func setsid(_ *stdio, args []string) error {
	if len(args) > 0 && args[0] == "-w" {
		args = args[1:]
	}
	if len(args) == 0 {
		return errUsage
	}
	if _, err := unix.Setsid(); err != nil { // already the leader of a group
		cmd := exec.Command(args[0], args[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		return start(cmd)
	}
	return replace(args, os.Environ())
}

func nproc(s *stdio, _ []string) error {
	_, err := fmt.Fprintln(s.out, runtime.NumCPU())
	return err
}

func uptime(s *stdio, _ []string) error {
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.out, "up %v\n", time.Duration(si.Uptime)*time.Second)
	return err
}

func free(s *stdio, args []string) error {
	o, err := parse(args, "bkmgh")
	if err != nil {
		return err
	}
	kb := make(map[string]int64)
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return err
	}
	defer f.Close()
	err = eachLine(f, func(line string) bool {
		key, rest, _ := strings.Cut(line, ":")
		if v := strings.Fields(rest); len(v) > 0 {
			kb[key], _ = strconv.ParseInt(v[0], 10, 64)
		}
		return true
	})
	show := func(k int64) int64 {
		switch {
		case o.has('b'):
			return k << 10
		case o.has('m'), o.has('h'):
			return k >> 10
		case o.has('g'):
			return k >> 20
		}
		return k
	}
	fmt.Fprintf(s.out, "%-6s %12s %12s %12s %12s\n", "", "total", "used", "free", "available")
	fmt.Fprintf(s.out, "%-6s %12d %12d %12d %12d\n", "Mem:", show(kb["MemTotal"]), show(kb["MemTotal"]-kb["MemAvailable"]), show(kb["MemFree"]), show(kb["MemAvailable"]))
	return err
}

func dmesg(s *stdio, _ []string) error {
	const readAll, sizeBuffer = 3, 10 // syslog(2)
	n, err := unix.Klogctl(sizeBuffer, nil)
	if err != nil {
		return err
	}
	buf := make([]byte, n)
	n, err = unix.Klogctl(readAll, buf)
	if err != nil {
		return err
	}
	_, err = s.out.Write(buf[:n])
	return err
}

// powerOff and reboot ask PID 1, which knows what is to be done first.
func powerOff(*stdio, []string) error { return syscall.Kill(1, syscall.SIGTERM) }
func reboot(*stdio, []string) error   { return syscall.Kill(1, syscall.SIGINT) }

func date(s *stdio, args []string) error {
	o, err := parse(args, "us:d:I")
	if err != nil {
		return err
	}
	now := time.Now()
	if o.has('d') {
		if n, err := strconv.ParseInt(strings.TrimPrefix(o.set['d'], "@"), 10, 64); err == nil && strings.HasPrefix(o.set['d'], "@") {
			now = time.Unix(n, 0)
		} else {
			return fmt.Errorf("%w: -d %q", errors.ErrUnsupported, o.set['d'])
		}
	}
	if o.has('s') {
		n, err := strconv.ParseInt(strings.TrimPrefix(o.set['s'], "@"), 10, 64)
		if err != nil {
			return fmt.Errorf("want -s @SECONDS")
		}
		return unix.Settimeofday(&unix.Timeval{Sec: n})
	}
	if o.has('u') {
		now = now.UTC()
	}
	switch {
	case o.has('I'):
		fmt.Fprintln(s.out, now.Format(time.DateOnly))
	case len(o.args) == 1 && strings.HasPrefix(o.args[0], "+"):
		fmt.Fprintln(s.out, strftime(now, o.args[0][1:]))
	case len(o.args) == 0:
		fmt.Fprintln(s.out, now.Format("Mon Jan _2 15:04:05 MST 2006"))
	default:
		return errUsage
	}
	return nil
}

// strftime formats as strftime(3), as far as scripts use it.
func strftime(t time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		switch format[i] {
		case 's':
			b.WriteString(strconv.FormatInt(t.Unix(), 10))
		case 'N':
			fmt.Fprintf(&b, "%09d", t.Nanosecond())
		case 'j':
			fmt.Fprintf(&b, "%03d", t.YearDay())
		case '%':
			b.WriteByte('%')
		case 'n':
			b.WriteByte('\n')
		default:
			layout := ""
			for _, l := range [...]struct {
				c      byte
				layout string
			}{
				{'Y', "2006"}, {'y', "06"}, {'m', "01"}, {'d', "02"}, {'e', "_2"}, {'H', "15"}, {'I', "03"}, {'M', "04"}, {'S', "05"},
				{'p', "PM"}, {'a', "Mon"}, {'A', "Monday"}, {'b', "Jan"}, {'B', "January"}, {'Z', "MST"}, {'z', "-0700"},
				{'F', "2006-01-02"}, {'T', "15:04:05"}, {'D', "01/02/06"}, {'R', "15:04"},
			} {
				if l.c == format[i] {
					layout = l.layout
				}
			}
			b.WriteString(t.Format(layout))
		}
	}
	return b.String()
}

func which(s *stdio, args []string) error {
	missing := false
	for _, a := range args {
		path, err := exec.LookPath(a)
		if err != nil {
			missing = true
			continue
		}
		fmt.Fprintln(s.out, path)
	}
	if missing {
		return exitCode(1)
	}
	return nil
}

func tty(s *stdio, _ []string) error {
	if _, err := unix.IoctlGetTermios(0, unix.TCGETS); err != nil {
		fmt.Fprintln(s.out, "not a tty")
		return exitCode(1)
	}
	name, err := os.Readlink("/proc/self/fd/0")
	fmt.Fprintln(s.out, name)
	return err
}

// stty knows "size", "raw", "-raw" or "sane", "echo" and "-echo".
func stty(s *stdio, args []string) error {
	t, err := unix.IoctlGetTermios(0, unix.TCGETS)
	if err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	for _, a := range args {
		switch a {
		case "size":
			ws, err := unix.IoctlGetWinsize(0, unix.TIOCGWINSZ)
			if err != nil {
				return err
			}
			fmt.Fprintln(s.out, ws.Row, ws.Col)
		case "raw":
			t.Iflag &^= unix.BRKINT | unix.ICRNL | unix.INPCK | unix.ISTRIP | unix.IXON
			t.Oflag &^= unix.OPOST
			t.Lflag &^= unix.ICANON | unix.ISIG | unix.IEXTEN
			t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
		case "-raw", "sane":
			t.Iflag |= unix.BRKINT | unix.ICRNL | unix.IXON
			t.Oflag |= unix.OPOST | unix.ONLCR
			t.Lflag |= unix.ICANON | unix.ISIG | unix.IEXTEN | unix.ECHO
		case "echo":
			t.Lflag |= unix.ECHO
		case "-echo":
			t.Lflag &^= unix.ECHO
		default:
			return fmt.Errorf("unknown setting %q", a)
		}
	}
	return unix.IoctlSetTermios(0, unix.TCSETS, t)
}
