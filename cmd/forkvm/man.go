package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// epochVariable sets the date of what is made, for builds that are to be
// reproducible: https://reproducible-builds.org/specs/source-date-epoch.
const epochVariable = "SOURCE_DATE_EPOCH"

func newMan(sig *signals) *cobra.Command {
	return &cobra.Command{
		Use:   "man DIRECTORY",
		Short: "Write manual pages, one for each command",
		Long: `Write manual pages of section 1 to a directory, which is made: one for each command, with
what --help says of it. Their date is that of $` + epochVariable + `, in seconds since 1970, or else
of the commit that this program was built from, and nothing else in them depends on where
or when they are written.`,
		Example: `  forkvm man ~/.local/share/man/man1
  man forkvm-run`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			date, err := manDate()
			if err != nil {
				return err
			}
			for _, v := range os.Environ() { // defaults of flags may be variables
				if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "FORKVM_") {
					os.Unsetenv(name)
				}
			}
			if err := os.MkdirAll(args[0], 0o777); err != nil {
				return err
			}
			return writeManPages(args[0], newRoot(sig), date)
		},
	}
}

// manDate is the date of the pages, which is empty if there is none to know.
func manDate() (string, error) {
	if epoch := os.Getenv(epochVariable); epoch != "" {
		seconds, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return "", usageError("$%s: %w", epochVariable, err)
		}
		return time.Unix(seconds, 0).UTC().Format(time.DateOnly), nil
	}
	day, _, _ := strings.Cut(readVersion().Time, "T")
	return day, nil
}

// writeManPages writes the pages of a command and of those below it.
func writeManPages(dir string, cmd *cobra.Command, date string) error {
	page := filepath.Join(dir, manName(cmd)+".1")
	if err := os.WriteFile(page, manPage(cmd, date), 0o666); err != nil {
		return err
	}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			if err := writeManPages(dir, c, date); err != nil {
				return err
			}
		}
	}
	return nil
}

func manName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manPage is the page of a command in the macros of man(7).
func manPage(cmd *cobra.Command, date string) []byte {
	m := &manWriter{}
	version := readVersion().Version
	m.line(`.TH "%s" 1 "%s" "%s" "forkvm"`, escapeRoff(strings.ToUpper(manName(cmd))), escapeRoff(date), escapeRoff("forkvm "+version))
	m.line(".nh") // words may be names of files
	m.line(".ad l")
	m.line(".SH NAME")
	m.line(`%s \- %s`, escapeRoff(manName(cmd)), escapeRoff(cmd.Short))
	m.line(".SH SYNOPSIS")
	m.line(`\fB%s\fR`, escapeRoff(cmd.UseLine()))
	if cmd.HasAvailableSubCommands() {
		m.line(".br")
		m.line(`\fB%s\fR \fICOMMAND\fR ...`, escapeRoff(cmd.CommandPath()))
	}
	for _, a := range cmd.Aliases {
		m.line(".br")
		m.line(`\fB%s %s\fR \fICOMMAND\fR ...`, escapeRoff(cmd.Parent().CommandPath()), escapeRoff(a))
	}
	m.line(".SH DESCRIPTION")
	m.prose(cmd.Long)
	if cmd.Long == "" {
		m.prose(cmd.Short + ".")
	}
	m.commands(cmd)
	m.line(".SH OPTIONS")
	cmd.InitDefaultHelpFlag()
	cmd.LocalFlags().VisitAll(m.flag)
	if cmd.Example != "" {
		m.line(".SH EXAMPLES")
		m.prose(cmd.Example)
	}
	if cmd.HasParent() {
		m.line(".SH SEE ALSO")
		m.line(`\fB%s\fR(1)`, escapeRoff(manName(cmd.Parent())))
	}
	return m.Bytes()
}

// manWriter writes a page.
type manWriter struct{ bytes.Buffer }

func (m *manWriter) line(format string, args ...any) { fmt.Fprintf(m, format+"\n", args...) }

// prose writes text whose lines are filled, but for those that begin with a space.
func (m *manWriter) prose(text string) {
	asIs := false
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		if line == "" {
			m.line(".PP")
			continue
		}
		if indented := line[0] == ' '; indented != asIs {
			asIs = indented
			m.line("%s", map[bool]string{true: ".nf", false: ".fi"}[asIs])
		}
		m.line("%s", escapeRoff(line))
	}
	if asIs {
		m.line(".fi")
	}
}

// commands lists those below a command.
func (m *manWriter) commands(cmd *cobra.Command) {
	if !cmd.HasAvailableSubCommands() {
		return
	}
	m.line(".SH COMMANDS")
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			m.line(".TP")
			m.line(`\fB%s\fR(1)`, escapeRoff(manName(c)))
			m.line("%s", escapeRoff(c.Short))
		}
	}
}

func (m *manWriter) flag(f *pflag.Flag) {
	if f.Hidden {
		return
	}
	value, usage := pflag.UnquoteUsage(f)
	m.line(".TP")
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	m.line(`\fB%s\fR \fI%s\fR`, escapeRoff(name), escapeRoff(value))
	switch f.DefValue {
	case "", "false", "0", "0s", "[]": // as pflag has it in --help
	default:
		usage += " (default " + f.DefValue + ")"
	}
	m.line("%s", escapeRoff(usage))
}

// roff is how characters are written that formatters take for something else.
var roff = strings.NewReplacer(`\`, `\e`, `-`, `\-`, `'`, `\(aq`, "`", `\(ga`, `^`, `\(ha`, `~`, `\(ti`, `"`, `\(dq`)

// escapeRoff is text that a formatter prints as it is.
func escapeRoff(text string) string {
	text = roff.Replace(text)
	if strings.HasPrefix(text, ".") {
		text = `\&` + text
	}
	return text
}
