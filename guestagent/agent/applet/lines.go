package applet

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

func sortCmd(s *stdio, args []string) error {
	o, err := parse(args, "nruk:t:")
	if err != nil {
		return err
	}
	field := 0
	if o.has('k') {
		if field, err = strconv.Atoi(o.set['k']); err != nil || field < 1 {
			return fmt.Errorf("bad field %q", o.set['k'])
		}
	}
	var lines []string
	err = eachInput(s, o.args, func(_ string, r io.Reader) error {
		return eachLine(r, func(line string) bool { lines = append(lines, line); return true })
	})
	if err != nil {
		return err
	}
	key := func(line string) string { return sortKey(line, field, o.set['t']) }
	compare := func(a, b string) int {
		c := strings.Compare(key(a), key(b))
		if o.has('n') {
			c = cmp.Compare(leadingNumber(key(a)), leadingNumber(key(b)))
		}
		if o.has('r') {
			c = -c
		}
		return c
	}
	slices.SortStableFunc(lines, compare)
	if o.has('u') {
		lines = slices.CompactFunc(lines, func(a, b string) bool { return compare(a, b) == 0 })
	}
	for _, line := range lines {
		fmt.Fprintln(s.out, line)
	}
	return nil
}

// sortKey returns a line from its nth field on, or all of it if n is 0.
func sortKey(line string, n int, sep string) string {
	if n == 0 {
		return line
	}
	f := strings.Fields(line)
	if sep != "" {
		f = strings.Split(line, sep)
	}
	if n > len(f) {
		return ""
	}
	return strings.Join(f[n-1:], " ")
}

// leadingNumber returns the number a line begins with, or 0.
func leadingNumber(line string) float64 {
	line = strings.TrimLeft(line, " \t")
	end := 0
	for end < len(line) && strings.IndexByte("+-.0123456789", line[end]) >= 0 {
		end++
	}
	n, _ := strconv.ParseFloat(line[:end], 64)
	return n
}

func uniq(s *stdio, args []string) error {
	o, err := parse(args, "cdu")
	if err != nil {
		return err
	}
	last, n := "", 0
	emit := func() {
		if n == 0 || (o.has('d') && n == 1) || (o.has('u') && n > 1) {
			return
		}
		if o.has('c') {
			fmt.Fprintf(s.out, "%7d ", n)
		}
		fmt.Fprintln(s.out, last)
	}
	err = eachInput(s, o.args, func(_ string, r io.Reader) error {
		return eachLine(r, func(line string) bool {
			if n > 0 && line == last {
				n++
				return true
			}
			emit()
			last, n = line, 1
			return true
		})
	})
	emit()
	return err
}

// grep exits with 0 if a line matched, 1 if none did, 2 if something is wrong.
func grep(s *stdio, args []string) error {
	matched, err := grepFiles(s, args)
	if err != nil {
		fmt.Fprintf(s.err, "grep: %v\n", err)
		return exitCode(2)
	}
	if !matched {
		return exitCode(1)
	}
	return nil
}

func grepFiles(s *stdio, args []string) (matched bool, err error) {
	o, err := parse(args, "ivncqFEowlhH")
	if err != nil {
		return false, err
	}
	if len(o.args) == 0 {
		return false, errUsage
	}
	re, err := grepPattern(o)
	if err != nil {
		return false, err
	}
	files := o.args[1:]
	err = eachInput(s, files, func(name string, r io.Reader) error {
		prefix := ""
		if (len(files) > 1 || o.has('H')) && !o.has('h') {
			prefix = name + ":"
		}
		n, at := 0, 0
		err := eachLine(r, func(line string) bool {
			at++
			if re.MatchString(line) == o.has('v') {
				return true
			}
			n++
			if o.has('q') || o.has('l') {
				return false
			}
			if !o.has('c') {
				printMatch(s, o, re, prefix, at, line)
			}
			return true
		})
		matched = matched || n > 0
		if o.has('c') {
			fmt.Fprintf(s.out, "%s%d\n", prefix, n)
		}
		if o.has('l') && n > 0 {
			fmt.Fprintln(s.out, name)
		}
		return err
	})
	return matched, err
}

func grepPattern(o *options) (*regexp.Regexp, error) {
	p := o.args[0]
	switch {
	case o.has('F'):
		p = regexp.QuoteMeta(p)
	case !o.has('E'):
		p = basicToExtended(p)
	}
	if o.has('w') {
		p = `\b(?:` + p + `)\b`
	}
	if o.has('i') {
		p = "(?i)" + p
	}
	return regexp.Compile(p)
}

// basicToExtended swaps the meaning of \( and ( and their like, which is the
// difference between POSIX's basic and extended expressions.
func basicToExtended(p string) string {
	var b strings.Builder
	for i := 0; i < len(p); i++ {
		switch c := p[i]; {
		case c == '\\' && i+1 < len(p) && strings.IndexByte("(){}|+?", p[i+1]) >= 0:
			i++
			b.WriteByte(p[i])
		case c == '\\' && i+1 < len(p):
			b.WriteString(p[i : i+2])
			i++
		case strings.IndexByte("(){}|+?", c) >= 0:
			b.WriteByte('\\')
			b.WriteByte(c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

func printMatch(s *stdio, o *options, re *regexp.Regexp, prefix string, at int, line string) {
	if o.has('n') {
		prefix += strconv.Itoa(at) + ":"
	}
	if !o.has('o') {
		fmt.Fprintln(s.out, prefix+line)
		return
	}
	for _, m := range re.FindAllString(line, -1) {
		fmt.Fprintln(s.out, prefix+m)
	}
}
