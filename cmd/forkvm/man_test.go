package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// manPages are those that a command writes, by name, with an environment.
func manPages(t *testing.T, vars ...string) map[string]string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "new")
	cmd := exec.CommandContext(t.Context(), "forkvm", "man", dir)
	cmd.Env = append(os.Environ(), vars...)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("%v: %s", err, out)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		pages[f.Name()] = string(b)
	}
	return pages
}

// TestManPages: each command that help shows has a page with all its options.
func TestManPages(t *testing.T) {
	pages := manPages(t, "SOURCE_DATE_EPOCH=86400")
	shown := 0
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		shown++
		name := manName(cmd) + ".1"
		page := pages[name]
		for _, want := range []string{".TH ", `"1970\-01\-02"`, "\n.SH NAME\n", "\n.SH SYNOPSIS\n", "\n.SH DESCRIPTION\n", "\n.SH OPTIONS\n", escapeRoff(cmd.UseLine())} {
			if !strings.Contains(page, want) {
				t.Errorf("%s lacks %q", name, want)
			}
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && !strings.Contains(page, escapeRoff("--"+f.Name)+`\fR`) {
				t.Errorf("%s lacks --%s", name, f.Name)
			}
		})
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				check(c)
				if !strings.Contains(page, escapeRoff(manName(c))+`\fR(1)`) {
					t.Errorf("%s does not mention %s", name, c.Name())
				}
			}
		}
	}
	check(newRoot(nil))
	if shown != len(pages) || shown < 50 {
		t.Errorf("%d pages for %d commands", len(pages), shown)
	}
	// A line that begins so is a request to the formatter.
	request := regexp.MustCompile(`(?m)^(['.].*)$`)
	ours := regexp.MustCompile(`^\.(TH .*|SH [A-Z ]+|PP|TP|br|nf|fi|nh|ad l)$`)
	for name, page := range pages {
		for _, line := range request.FindAllString(page, -1) {
			if !ours.MatchString(line) {
				t.Errorf("%s: %s", name, line)
			}
		}
	}
}

// TestManPagesAreReproducible: it makes no difference who writes them, and when.
func TestManPagesAreReproducible(t *testing.T) {
	one := manPages(t, "SOURCE_DATE_EPOCH=86400", "TZ=UTC")
	two := manPages(t, "SOURCE_DATE_EPOCH=86400", "TZ=Asia/Tokyo", "FORKVM_STORE=/elsewhere", "FORKVM_SERVER=http://elsewhere", "FORKVM_CMDLINE=x", "HOME=/elsewhere")
	for name, page := range one {
		if page != two[name] {
			t.Errorf("%s differs", name)
		}
	}
	for name, page := range manPages(t, "SOURCE_DATE_EPOCH=") {
		date, _ := manDate()
		if want := strings.Replace(one[name], `1970\-01\-02`, escapeRoff(date), 1); page != want {
			t.Errorf("%s has a date of its own", name)
		}
	}
}

// TestManPagesAreFormatted by what there is.
func TestManPagesAreFormatted(t *testing.T) {
	for _, formatter := range [][]string{{"groff", "-man", "-Tascii", "-ww", "-P-c"}, {"mandoc", "-T", "ascii", "-W", "error"}} {
		program, err := exec.LookPath(formatter[0])
		if err != nil {
			continue
		}
		for name, page := range manPages(t, "SOURCE_DATE_EPOCH=86400") {
			cmd := exec.CommandContext(t.Context(), program, formatter[1:]...)
			cmd.Stdin = strings.NewReader(page)
			var errs bytes.Buffer
			cmd.Stderr = &errs
			out, err := cmd.Output()
			if err != nil || errs.Len() > 0 {
				t.Errorf("%s: %s: %v: %s", program, name, err, &errs)
			}
			text := regexp.MustCompile(`.\x08`).ReplaceAllString(string(out), "") // overstruck for bold
			if name == "forkvm-exec.1" && (!strings.Contains(text, "  127    the command in the guest was not found\n") || !strings.Contains(text, "'forkvm logs'")) {
				t.Errorf("%s printed:\n%s", program, text)
			}
		}
	}
}

func TestEscapeRoff(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", ".PP": `\&.PP`, "'x'": `\(aqx\(aq`, `a\n`: `a\en`, "--a-b": `\-\-a\-b`, "~/x": `\(ti/x`, "a.b": "a.b",
	} {
		if got := escapeRoff(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
