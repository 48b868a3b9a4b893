package applet

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// asApplet is the environment variable that makes this program the command
// that its arguments name, as /init is in a guest.
const asApplet = "FORKVM_TEST_AS_APPLET"

func TestMain(m *testing.M) {
	if os.Getenv(asApplet) != "" {
		os.Exit(Find(os.Args[1])(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// run runs a command with an input and returns what it printed, and its exit
// code.
func run(t *testing.T, in string, args ...string) (out, errOut string, code int) {
	t.Helper()
	e := lookup(args[0])
	if e == nil {
		t.Fatalf("no command %q", args[0])
	}
	var o, eo bytes.Buffer
	s := &stdio{in: strings.NewReader(in), out: bufio.NewWriter(&o), raw: &o, err: &eo}
	code = e.exec(s, args[1:])
	return o.String(), eo.String(), code
}

func TestTableIsSorted(t *testing.T) {
	names := Names()
	if !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) != len(names) {
		t.Errorf("not in order, or twice: %q", names)
	}
	for _, e := range table {
		if (e.run == nil) == (e.core == nil) {
			t.Errorf("%s has no implementation, or two", e.name)
		}
		if lookup(e.name) == nil || Find(e.name) == nil {
			t.Errorf("%s is not found", e.name)
		}
	}
	for _, name := range []string{"", "nothing", "zzz", "\x00"} {
		if Find(name) != nil {
			t.Errorf("%q is found", name)
		}
	}
}

func TestInstall(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bin")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cat"), []byte("the embedder's"), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Install("/init", dir); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "cat")); err != nil || string(b) != "the embedder's" {
		t.Errorf("an existing file was replaced: %q, %v", b, err)
	}
	for _, name := range Names() {
		if target, err := os.Readlink(filepath.Join(dir, name)); name != "cat" && (err != nil || target != "/init") {
			t.Errorf("%s: %q, %v", name, target, err)
		}
	}
}

func TestCommands(t *testing.T) {
	for _, tc := range []struct {
		args string // separated by |
		in   string
		out  string
		code int
	}{
		{"echo|a|b", "", "a b\n", 0},
		{"echo|-n|a", "", "a", 0},
		{`echo|-e|a\tb\x41\101\\`, "", "a\tbAA\\\n", 0},
		{`echo|a\tb`, "", "a\\tb\n", 0},
		{"true", "", "", 0},
		{"false", "", "", 1},
		{`printf|%s-%d-%x\n|a|10|255`, "", "a-10-ff\n", 0},
		{`printf|%s\n|a|b|c`, "", "a\nb\nc\n", 0},
		{`printf|%5s|ab`, "", "   ab", 0},
		{`printf|%q|ab`, "", "", 1},
		{`printf|%d|x`, "", "", 1},
		{`printf|100%%`, "", "100%", 0},
		{`printf|%03d|7`, "", "007", 0},
		{"basename|/a/b.c", "", "b.c\n", 0},
		{"basename|/a/b.c|.c", "", "b\n", 0},
		{"dirname|/a/b", "", "/a\n", 0},
		{"dirname|a", "", ".\n", 0},
		{"dirname|/", "", "/\n", 0},
		{"seq|3", "", "1\n2\n3\n", 0},
		{"seq|2|3", "", "2\n3\n", 0},
		{"seq|5|-2|1", "", "5\n3\n1\n", 0},
		{"seq", "", "", 1},
		{"wc", "one two\nthree\n", "2 3 14\n", 0},
		{"wc|-l", "a\nb", "1\n", 0},
		{"wc|-c", "äb", "3\n", 0},
		{"wc|-m", "äb", "2\n", 0},
		{"head|-n|2", "1\n2\n3\n", "1\n2\n", 0},
		{"head|-1", "1\n2\n", "1\n", 0},
		{"head|-c|3", "12345", "123", 0},
		{"head|-c|9", "12345", "12345", 0},
		{"tail|-n|2", "1\n2\n3\n", "2\n3\n", 0},
		{"tail|-n|+2", "1\n2\n3\n", "2\n3\n", 0},
		{"tail|-c|2", "12345", "45", 0},
		{"sort", "b\na\nc\n", "a\nb\nc\n", 0},
		{"sort|-rn", "9\n10\n-1\n1.5\n", "10\n9\n1.5\n-1\n", 0},
		{"sort|-u", "b\na\nb\n", "a\nb\n", 0},
		{"sort|-k|2", "x 2\ny 1\n", "y 1\nx 2\n", 0},
		{"sort|-t|:|-k2", "x:2\ny:1\n", "y:1\nx:2\n", 0},
		{"uniq|-c", "a\na\nb\n", "      2 a\n      1 b\n", 0},
		{"uniq|-d", "a\na\nb\n", "a\n", 0},
		{"grep|b", "abc\nxyz\n", "abc\n", 0},
		{"grep|-v|b", "abc\nxyz\n", "xyz\n", 0},
		{"grep|-c|.", "a\nb\n", "2\n", 0},
		{"grep|-n|b", "a\nb\n", "2:b\n", 0},
		{"grep|-i|B", "b\n", "b\n", 0},
		{"grep|-q|b", "b\n", "", 0},
		{"grep|none", "b\n", "", 1},
		{"grep|-E|a(b\\|c)+$", "abcb\nad\n", "abcb\n", 0},
		{"grep|-E|a(b)+$", "abbb\n", "abbb\n", 0},
		{`grep|a\(b\)\{2\}$`, "abb\na(b)\n", "abb\n", 0},
		{"grep|a(b)", "abb\na(b)\n", "a(b)\n", 0},
		{"grep|-F|a.c", "abc\na.c\n", "a.c\n", 0},
		{"grep|-o|[0-9]*[0-9]", "a12b3\n", "12\n3\n", 0},
		{"grep|-w|ab", "abc\nab c\n", "ab c\n", 0},
		{"grep|[", "", "", 2},
		{"cut|-d|:|-f|1,3-", "a:b:c:d\nnone\n", "a:c:d\nnone\n", 0},
		{"cut|-c|2-3", "abcd\n", "bc\n", 0},
		{"cut|-f|0", "a\n", "", 1},
		{"tr|a-z|A-Z", "abc1\n", "ABC1\n", 0},
		{"tr|-d|0-9", "a1b2", "ab", 0},
		{"tr|-s| ", "a   b", "a b", 0},
		{"tr|-cd|[:alnum:]", "a-1!", "a1", 0},
		{`tr|\n| `, "a\nb\n", "a b ", 0},
		{"sha256sum", "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  -\n", 0},
		{"md5sum", "", "d41d8cd98f00b204e9800998ecf8427e  -\n", 0},
		{"base64", "hello", "aGVsbG8=\n", 0},
		{"cat", "text", "text", 0},
		{"test|a|=|a", "", "", 0},
		{"test|a|!=|a", "", "", 1},
		{"test|3|-gt|2", "", "", 0},
		{"test|-d|/", "", "", 0},
		{"test|!|-f|/", "", "", 0},
		{"test|-n||-o|-z|", "", "", 0},
		{"test|x|-a|", "", "", 1},
		{"test|(|a|=|a|)|-a|b", "", "", 0},
		{"test", "", "", 1},
		{"test|1|-eq|x", "", "", 2},
		{"[|a|=|a|]", "", "", 0},
		{"[|a", "", "", 2},
		{"date|-u|-d|@1000000000|+%Y-%m-%dT%H:%M:%S %s %j %%", "", "2001-09-09T01:46:40 1000000000 252 %\n", 0},
		{"sleep|0", "", "", 0},
		{"sleep|x", "", "", 1},
		{"sleep|0.001", "", "", 0},
		{"which|no-such-program", "", "", 1},
		{"printenv|NO_SUCH_VARIABLE", "", "", 1},
		{"kill|-BAD|1", "", "", 1},
		{"kill|-0|999999999", "", "", 1},
		{"readlink|/no/such/link", "", "", 1},
		{"dd|bs=2|count=2|skip=1", "abcdefgh", "cdef", 0},
		{"dd|bs=0", "", "", 1},
		{"dd|bs=99999999999G", "", "", 1},
		{"head|-Z", "", "", 1},
		{"sh|-c|echo $0 $1; exit 4|name|arg", "", "name arg\n", 4},
		{"sh|-c|nosuchcommand", "", "", 127},
		{"sh|-c|if", "", "", 2},
		{"sh|-c|set -e; false; echo no", "", "", 1},
		{"sh|-ec|false; echo no", "", "", 1},
		{"sh|-c", "", "", 1},
		{"sh|/no/such/script", "", "", 127},
		{"sh|-c|/bin/sh -c 'exit 3'; echo $?; /bin/sh -c 'kill -9 $$'; echo $?", "", "3\n137\n", 0},
		{"sh|-c|A=1; export B=2; /bin/sh -c 'echo $A-$B'; C=3 /bin/sh -c 'echo $C'; unset B; /bin/sh -c 'echo $B'", "", "-2\n3\n\n", 0},
		{"sh|-c|false & wait $!; echo $?; (exit 7) & wait $!; echo $?", "", "1\n7\n", 0},
		{"sh|-c|for i in 1 2; do { echo $i; } & wait; done", "", "1\n2\n", 0},
		{"sh", "echo from stdin; exit 2", "from stdin\n", 2},
		{"sh|-c|for i in 1 2 3; do echo $((i*2)); done \\| { read a; read b; echo $a$b; }", "", "24\n", 0},
	} {
		args := split(tc.args)
		out, errOut, code := run(t, tc.in, args...)
		if out != tc.out || code != tc.code {
			t.Errorf("%s: %q and exit code %d, want %q and %d (%s)", tc.args, out, code, tc.out, tc.code, strings.TrimSpace(errOut))
		}
		if code > 1 != (errOut != "") && args[0] != "sh" && code != 1 && args[0] != "dd" {
			t.Errorf("%s: exit code %d and message %q", tc.args, code, errOut)
		}
	}
}

// split splits at bars that have no backslash before them.
func split(s string) []string {
	parts := strings.Split(strings.ReplaceAll(s, `\|`, "\x00"), "|")
	for i := range parts {
		parts[i] = strings.ReplaceAll(parts[i], "\x00", "|")
	}
	return parts
}

func TestFileCommands(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, tc := range []struct {
		args, in, out string
		code          int
	}{
		{"tee|f|g", "text\n", "text\n", 0},
		{"tee|-a|f", "more\n", "more\n", 0},
		{"cat|f", "", "text\nmore\n", 0},
		{"cp|f|h", "", "", 0},
		{"mv|h|i", "", "", 0},
		{"ln|-s|f|link", "", "", 0},
		{"ln|-s|g|link", "", "", 1},
		{"ln|-sf|g|link", "", "", 0},
		{"readlink|link", "", "g\n", 0},
		{"realpath|link", "", dir + "/g\n", 0},
		{"ln|f|hard", "", "", 0},
		{"mkdir|-p|a/b", "", "", 0},
		{"rmdir|a", "", "", 1},
		{"rmdir|a/b|a", "", "", 0},
		{"wc|-l|f|g", "", "2 f\n1 g\n3 total\n", 0},
		{"grep|text|f|g", "", "f:text\ng:text\n", 0},
		{"grep|-l|more|f|g", "", "f\n", 0},
		{"gzip|f", "", "", 0},
		{"zcat|f.gz", "", "text\nmore\n", 0},
		{"gunzip|f.gz", "", "", 0},
		{"cat|f", "", "text\nmore\n", 0},
		{"gunzip|f", "", "", 1},
		{"dd|if=f|of=part|bs=1|count=4", "", "", 0},
		{"cat|part", "", "text", 0},
		{"dd|of=part|seek=2|bs=1", "XX", "", 0},
		{"cat|part", "", "teXX", 0},
		{"touch|new", "", "", 0},
		{"test|-s|new", "", "", 1},
		{"chmod|600|f", "", "", 0},
		{"tar|-c|-f|t.tar|f|g", "", "", 0},
		{"rm|f|g", "", "", 0},
		{"test|-e|f", "", "", 1},
		{"cat|f", "", "", 1},
		{"pwd", "", dir + "\n", 0},
	} {
		out, errOut, code := run(t, tc.in, strings.Split(tc.args, "|")...)
		if out != tc.out || code != tc.code {
			t.Errorf("%s: %q and exit code %d, want %q and %d (%s)", tc.args, out, code, tc.out, tc.code, strings.TrimSpace(errOut))
		}
	}
}

func TestSystemCommands(t *testing.T) {
	for _, tc := range []struct{ args, contains string }{
		{"uname|-a", "x86_64"},
		{"ps", "COMMAND"},
		{"id", "uid="},
		{"free|-m", "Mem:"},
		{"df", "Mounted on"},
		{"df|/", "/"},
		{"du|-s|.", "\t."},
		{"env", "PATH="},
		{"env|-u|PATH", "="},
		{"mount", "proc"},
		{"nproc", ""},
		{"uptime", "up "},
		{"hostname", ""},
		{"whoami", ""},
		{"kill|-l", "SIGKILL"},
		{"ls|/", "proc"},
		{"find|/proc/self/fdinfo", "fdinfo"},
		{"which|sh", "/sh"},
	} {
		out, errOut, code := run(t, "", split(tc.args)...)
		if code != 0 || !strings.Contains(out, tc.contains) || out == "" {
			t.Errorf("%s: %.100q and exit code %d (%s)", tc.args, out, code, errOut)
		}
	}
}

// TestShellJobsBegin checks that a script's last words do not swallow what it
// started in the background.
func TestShellJobsBegin(t *testing.T) {
	for _, c := range []struct {
		name, script string
		jobs         int
	}{
		{"plain", `/bin/sh -c "echo x >FILE" &`, 1},
		{"compound", `{ true; /bin/sh -c "echo x >FILE"; } & echo`, 1},
		{"and", `true && /bin/sh -c "echo x >FILE" & exit 3`, 1},
		{"subshell", `(/bin/sh -c "echo x >FILE" &)`, 1},
		{"function", `f() { /bin/sh -c "echo x >FILE" & }; f`, 1},
		{"loop", `for i in 1 2 3; do /bin/sh -c "echo x >FILE" & done`, 3},
		{"builtin", `echo x >FILE &`, 1},
	} {
		fifo := filepath.Join(t.TempDir(), "fifo")
		if err := syscall.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(fifo, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0], "sh", "-c", strings.ReplaceAll(c.script, "FILE", fifo))
		cmd.Env = append(os.Environ(), asApplet+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Run(); err != nil && cmd.ProcessState.ExitCode() != 3 {
			t.Errorf("%s: %v", c.name, err)
		}
		// Of all: one that finds no reader any more would wait for one for ever.
		words := make([]byte, len("x\n")*c.jobs)
		_ = f.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.ReadFull(f, words); err != nil {
			t.Errorf("%s: %v", c.name, err)
			syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		}
		f.Close()
	}
}

func TestParse(t *testing.T) {
	o, err := parse([]string{"-ab", "-nval", "-m", "x", "--", "-c", "d"}, "abn:m:c")
	if err != nil || !o.has('a') || !o.has('b') || o.set['n'] != "val" || o.set['m'] != "x" || o.has('c') || !slices.Equal(o.args, []string{"-c", "d"}) {
		t.Errorf("%+v, %v", o, err)
	}
	for _, bad := range [][]string{{"-z"}, {"-n"}, {"-:"}} {
		if _, err := parse(bad, "n:"); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
