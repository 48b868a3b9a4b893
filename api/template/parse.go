package template

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Limits of a template's file.
const (
	// MaxFile is how long a file may be, in bytes.
	MaxFile = 1 << 20
	// MaxInstructions is how many instructions it may have.
	MaxInstructions = 250
)

// ErrSyntax is wrapped by every error about what a template's file says.
var ErrSyntax = errors.New("bad template file")

// SyntaxError is what is wrong with a template's file. It wraps ErrSyntax.
type SyntaxError struct {
	Line        int    // where the instruction begins, from 1; 0: the file as a whole
	Instruction string // its name, if it has got one
	Msg         string
}

// Error says where and what.
func (e *SyntaxError) Error() string {
	var b strings.Builder
	b.WriteString("template: ")
	if e.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", e.Line)
	}
	if e.Instruction != "" {
		b.WriteString(e.Instruction + ": ")
	}
	return b.String() + e.Msg
}

// Unwrap returns ErrSyntax.
func (e *SyntaxError) Unwrap() error { return ErrSyntax }

// File is a template's file that was read: see Parse. It is immutable.
type File struct {
	instructions []instruction
}

// instruction is one instruction of a file. Words are as they were written:
// quotes are removed and variables replaced when their values are known.
type instruction struct {
	name  string // in capitals
	line  int
	text  string      // the whole instruction, its lines joined
	words []string    // FROM, ARG, WORKDIR, USER: one; COPY: sources and destination
	pairs [][2]string // ENV
	argv  []string    // RUN, CMD, HEALTHCHECK: what is executed; nil: nothing
	chown string      // COPY
}

// fail is an error about the instruction.
func (i *instruction) fail(format string, args ...any) error {
	return &SyntaxError{Line: i.line, Instruction: i.name, Msg: fmt.Sprintf(format, args...)}
}

// Parse reads a template's file. These instructions of a Containerfile are
// understood, and all others refused:
//
//	FROM        base, debian, python, the name of another template that is
//	            built, a path, or a reference to an image
//	RUN         a line for /bin/sh, or a JSON list of words
//	COPY        [--chown=USER[:GROUP]] SOURCE... DESTINATION
//	ENV         NAME=VALUE..., or NAME VALUE
//	ARG         NAME[=DEFAULT]; known to all that follows, and to no fork
//	WORKDIR, USER
//	CMD         the command that is captured while it runs
//	HEALTHCHECK CMD ..., or NONE: tells by success that the CMD is ready
//
// A template that FROM names goes on from where it was captured: with what it
// runs, to which a CMD is added. It comes before an image of the same name,
// which can be told from it by a tag, as in name:latest.
//
// The first must be FROM; only ARG may come before it. An error is a
// *SyntaxError.
func Parse(src []byte) (*File, error) {
	lines, err := joinLines(src)
	if err != nil {
		return nil, err
	}
	f := &File{}
	for _, l := range lines {
		in, err := parseInstruction(l)
		if err != nil {
			return nil, err
		}
		f.instructions = append(f.instructions, in)
	}
	return f, f.check()
}

// check looks at the order of instructions.
func (f *File) check() error {
	seen := map[string]bool{}
	for k := range f.instructions {
		in := &f.instructions[k]
		switch {
		case in.name == "FROM" && seen["FROM"]:
			return in.fail("a template has one stage only")
		case in.name != "FROM" && in.name != "ARG" && !seen["FROM"]:
			return in.fail("FROM must come first")
		case (in.name == "CMD" || in.name == "HEALTHCHECK") && seen[in.name]:
			return in.fail("given twice")
		}
		seen[in.name] = in.name != "HEALTHCHECK" || in.argv != nil
	}
	switch {
	case !seen["FROM"]:
		return &SyntaxError{Msg: "no FROM"}
	case seen["HEALTHCHECK"] && !seen["CMD"]:
		return &SyntaxError{Msg: "HEALTHCHECK without a CMD to wait for"}
	}
	return nil
}

// line is an instruction whose lines are joined.
type line struct {
	number int
	text   string
}

var escapeDirective = regexp.MustCompile(`(?i)^#\s*escape\s*=\s*(\S*)`)

// joinLines finds the instructions. A line that ends in a backslash goes on in
// the next that is no comment.
func joinLines(src []byte) ([]line, error) {
	switch {
	case len(src) > MaxFile:
		return nil, &SyntaxError{Msg: fmt.Sprintf("longer than %d bytes", MaxFile)}
	case !utf8.Valid(src) || bytes.IndexByte(src, 0) >= 0:
		return nil, &SyntaxError{Msg: "not UTF-8 text"}
	}
	var lines []line
	var text strings.Builder // of the instruction that goes on
	begin := 0               // where it began; 0: none does
	flush := func() {
		if s := strings.TrimSpace(text.String()); s != "" {
			lines = append(lines, line{begin, s})
		}
		text.Reset()
		begin = 0
	}
	number := 0
	for raw := range strings.SplitSeq(strings.TrimPrefix(string(src), "\ufeff"), "\n") {
		number++
		raw = strings.TrimRight(raw, " \t\r")
		switch trimmed := strings.TrimSpace(raw); {
		case strings.HasPrefix(trimmed, "#"):
			if m := escapeDirective.FindStringSubmatch(trimmed); m != nil && m[1] != `\` && len(lines) == 0 && begin == 0 {
				return nil, &SyntaxError{Line: number, Msg: "lines can be continued with a backslash only"}
			}
			continue
		case trimmed == "":
			continue
		}
		if begin == 0 {
			begin = number
		}
		if rest, goesOn := strings.CutSuffix(raw, `\`); goesOn {
			text.WriteString(rest)
			continue
		}
		text.WriteString(raw)
		if flush(); len(lines) > MaxInstructions {
			return nil, &SyntaxError{Line: number, Msg: fmt.Sprintf("more than %d instructions", MaxInstructions)}
		}
	}
	flush()
	return lines, nil
}

// parsers are the instructions that are understood.
var parsers = map[string]func(in *instruction, rest string) error{
	"FROM": parseFrom, "ARG": parseArg, "ENV": parseEnv, "COPY": parseCopy, "WORKDIR": parseRest, "USER": parseOne,
	"RUN": parseCommand, "CMD": parseCommand, "HEALTHCHECK": parseCheck,
}

func parseInstruction(l line) (instruction, error) {
	name, rest := cutWord(l.text)
	in := instruction{name: strings.ToUpper(name), line: l.number, text: l.text}
	parse := parsers[in.name]
	if parse == nil {
		return in, &SyntaxError{Line: l.number, Msg: fmt.Sprintf("unknown instruction %.40q (known: FROM RUN COPY ENV ARG WORKDIR USER CMD HEALTHCHECK)", name)}
	}
	if rest == "" {
		return in, in.fail("nothing follows it")
	}
	if err := parse(&in, rest); err != nil {
		return in, err
	}
	for _, w := range in.words { // so that a bad word is found before anything is built
		if _, err := expand(w, func(string) (string, bool) { return "", false }); err != nil {
			return in, in.fail("%v", err)
		}
	}
	return in, nil
}

// cutWord cuts off the first word.
func cutWord(s string) (word, rest string) {
	if i := strings.IndexAny(s, " \t"); i >= 0 {
		return s[:i], strings.TrimLeft(s[i:], " \t")
	}
	return s, ""
}

// parseRest takes all that follows as one word: it may have spaces in it.
func parseRest(in *instruction, rest string) error {
	in.words = []string{rest}
	return nil
}

// parseOne takes exactly one word.
func parseOne(in *instruction, rest string) error {
	words, err := splitWords(rest)
	if err != nil {
		return in.fail("%v", err)
	}
	if len(words) != 1 {
		return in.fail("%d words in place of one", len(words))
	}
	in.words = words
	return nil
}

func parseFrom(in *instruction, rest string) error {
	if flag, _ := cutWord(rest); strings.HasPrefix(flag, "--") {
		return in.fail("option %.40q is not supported", flag)
	}
	if words, err := splitWords(rest); err == nil && len(words) == 3 && strings.EqualFold(words[1], "AS") {
		return in.fail("stages with names are not supported")
	}
	return parseOne(in, rest)
}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func parseArg(in *instruction, rest string) error {
	if err := parseOne(in, rest); err != nil {
		return err
	}
	name, _, _ := strings.Cut(in.words[0], "=")
	if !variableName.MatchString(name) {
		return in.fail("%.40q is not a name", name)
	}
	return nil
}

func parseEnv(in *instruction, rest string) error {
	name, value := cutWord(rest)
	if !strings.Contains(name, "=") {
		if value == "" {
			return in.fail("%.40q has no value", name)
		}
		in.pairs = [][2]string{{name, value}}
		return in.checkPairs()
	}
	words, err := splitWords(rest)
	if err != nil {
		return in.fail("%v", err)
	}
	for _, w := range words {
		name, value, ok := strings.Cut(w, "=")
		if !ok {
			return in.fail("%.40q is not NAME=VALUE", w)
		}
		in.pairs = append(in.pairs, [2]string{name, value})
	}
	return in.checkPairs()
}

func (i *instruction) checkPairs() error {
	for _, p := range i.pairs {
		if !variableName.MatchString(p[0]) {
			return i.fail("%.40q is not a name", p[0])
		}
		if _, err := expand(p[1], func(string) (string, bool) { return "", false }); err != nil {
			return i.fail("%v", err)
		}
	}
	return nil
}

func parseCopy(in *instruction, rest string) error {
	for strings.HasPrefix(rest, "--") {
		var flag string
		flag, rest = cutWord(rest)
		owner, ok := strings.CutPrefix(flag, "--chown=")
		if !ok || owner == "" {
			return in.fail("option %.40q is not supported", flag)
		}
		in.chown = owner
	}
	words, isList := jsonWords(rest)
	if isList {
		for k, w := range words {
			words[k] = quote(w)
		}
	} else {
		var err error
		if words, err = splitWords(rest); err != nil {
			return in.fail("%v", err)
		}
	}
	if len(words) < 2 {
		return in.fail("a source and a destination are needed")
	}
	for _, w := range words {
		switch {
		case isHeredoc(w):
			return in.fail("here-documents are not supported")
		case strings.Contains(w, "://") || strings.HasPrefix(w, "git@"):
			return in.fail("%.60q: only files can be copied, from the context directory", w)
		}
	}
	in.words = words
	return nil
}

// parseCommand takes a JSON list of words, or a line for the shell.
func parseCommand(in *instruction, rest string) error {
	if flag, _ := cutWord(rest); strings.HasPrefix(flag, "--") {
		return in.fail("option %.40q is not supported", flag)
	}
	if words, ok := jsonWords(rest); ok {
		if len(words) == 0 || words[0] == "" {
			return in.fail("a list with no command")
		}
		for _, w := range words {
			if strings.ContainsRune(w, 0) {
				return in.fail("a word with a NUL byte")
			}
		}
		in.argv = words
		return nil
	}
	for _, w := range strings.Fields(rest) {
		if isHeredoc(w) {
			return in.fail("here-documents are not supported")
		}
	}
	in.argv = []string{"/bin/sh", "-c", rest}
	return nil
}

func parseCheck(in *instruction, rest string) error {
	kind, command := cutWord(rest)
	switch {
	case strings.HasPrefix(kind, "--"):
		return in.fail("option %.40q is not supported: the check runs every %v, for up to %v", kind, checkEvery, checkFor)
	case strings.EqualFold(kind, "NONE") && command == "":
		return nil
	case !strings.EqualFold(kind, "CMD") || command == "":
		return in.fail("it is followed by CMD and a command, or by NONE")
	}
	return parseCommand(in, command)
}

// jsonWords reads a JSON list of strings; ok is false if s is none.
func jsonWords(s string) (words []string, ok bool) {
	if !strings.HasPrefix(s, "[") {
		return nil, false
	}
	if json.Unmarshal([]byte(s), &words) != nil {
		return nil, false
	}
	return words, true
}

var heredoc = regexp.MustCompile(`^\d*<<-?["']?[A-Za-z_]`)

func isHeredoc(word string) bool { return heredoc.MatchString(word) }

// isDirectory tells whether a destination is written as a directory's.
func isDirectory(dest string) bool {
	base := path.Base(dest)
	return strings.HasSuffix(dest, "/") || base == "." || base == ".."
}
