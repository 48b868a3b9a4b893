package applet

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

func echo(s *stdio, args []string) error {
	end := "\n"
	escapes := false
	for len(args) > 0 && (args[0] == "-n" || args[0] == "-e") {
		if args[0] == "-n" {
			end = ""
		} else {
			escapes = true
		}
		args = args[1:]
	}
	line := strings.Join(args, " ")
	if escapes {
		line = unescape(line)
	}
	_, err := s.out.WriteString(line + end)
	return err
}

// unescape replaces the backslash escapes of printf(1).
func unescape(in string) string {
	var b strings.Builder
	for i := 0; i < len(in); i++ {
		if in[i] != '\\' || i+1 == len(in) {
			b.WriteByte(in[i])
			continue
		}
		i++
		if j := strings.IndexByte(`abfnrtv\`, in[i]); j >= 0 {
			b.WriteByte("\a\b\f\n\r\t\v\\"[j])
			continue
		}
		digits, base, start, most := "01234567", 8, i, 3
		if in[i] == 'x' {
			digits, base, start, most = "0123456789abcdefABCDEF", 16, i+1, 2
		}
		end := start
		for end < len(in) && end < start+most && strings.IndexByte(digits, in[end]) >= 0 {
			end++
		}
		n, err := strconv.ParseUint(in[start:end], base, 8)
		if err != nil {
			b.WriteByte('\\')
			b.WriteByte(in[i])
			continue
		}
		b.WriteByte(byte(n))
		i = end - 1
	}
	return b.String()
}

func printfCmd(s *stdio, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	format, args := unescape(args[0]), args[1:]
	for {
		rest, err := printfOnce(s, format, args)
		if err != nil || len(rest) == 0 || len(rest) == len(args) {
			return err
		}
		args = rest
	}
}

// printfOnce goes through format once and returns the arguments it left.
func printfOnce(s *stdio, format string, args []string) ([]string, error) {
	next := func() string {
		if len(args) == 0 {
			return ""
		}
		a := args[0]
		args = args[1:]
		return a
	}
	for format != "" {
		i := strings.IndexByte(format, '%')
		if i < 0 {
			_, err := s.out.WriteString(format)
			return args, err
		}
		s.out.WriteString(format[:i])
		verb := strings.IndexAny(format[i+1:], "sdiuxXoc%b")
		if verb < 0 {
			return nil, fmt.Errorf("bad format %q", format[i:])
		}
		spec, kind := format[i:i+1+verb], format[i+1+verb]
		format = format[i+2+verb:]
		if strings.ContainsFunc(spec[1:], func(r rune) bool { return !strings.ContainsRune("0123456789.-+ #", r) }) {
			return nil, fmt.Errorf("bad format %q", spec)
		}
		switch kind {
		case '%':
			s.out.WriteByte('%')
		case 's':
			fmt.Fprintf(s.out, spec+"s", next())
		case 'b':
			fmt.Fprintf(s.out, spec+"s", unescape(next()))
		case 'c':
			a := next()
			fmt.Fprintf(s.out, spec+"s", a[:min(1, len(a))])
		default:
			a := next()
			n, err := strconv.ParseInt(a, 0, 64)
			if err != nil && a != "" {
				return nil, fmt.Errorf("not a number: %q", a)
			}
			if kind == 'i' || kind == 'u' {
				kind = 'd'
			}
			fmt.Fprintf(s.out, spec+string(kind), n)
		}
	}
	return args, nil
}

func wc(s *stdio, args []string) error {
	o, err := parse(args, "lwcm")
	if err != nil {
		return err
	}
	if len(o.set) == 0 {
		o.set = map[byte]string{'l': "", 'w': "", 'c': ""}
	}
	var total [4]int
	show := func(n [4]int, name string) {
		var f []string
		for i, flag := range []byte("lwcm") {
			if o.has(flag) {
				f = append(f, strconv.Itoa(n[i]))
			}
		}
		if name != "-" {
			f = append(f, name)
		}
		fmt.Fprintln(s.out, strings.Join(f, " "))
	}
	err = eachInput(s, o.args, func(name string, r io.Reader) error {
		n, err := count(r)
		for i := range n {
			total[i] += n[i]
		}
		show(n, name)
		return err
	})
	if len(o.args) > 1 {
		show(total, "total")
	}
	return err
}

// count returns the lines, words, bytes and characters of r.
func count(r io.Reader) (n [4]int, err error) {
	buf := make([]byte, 32<<10)
	inWord := false
	for {
		k, err := r.Read(buf)
		for _, c := range buf[:k] {
			if c == '\n' {
				n[0]++
			}
			space := c == ' ' || c >= '\t' && c <= '\r'
			if !space && !inWord {
				n[1]++
			}
			inWord = !space
			if utf8.RuneStart(c) {
				n[3]++
			}
		}
		n[2] += k
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// amount parses "-n 5", "-5" and "-n +5" of head and tail.
func amount(args []string, spec string) (n int, fromStart bool, o *options, err error) {
	if len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' && args[0][1] >= '0' && args[0][1] <= '9' {
		args = append([]string{"-n", args[0][1:]}, args[1:]...)
	}
	if o, err = parse(args, spec); err != nil {
		return 0, false, nil, err
	}
	value, n := "", 10
	for _, f := range []byte("nc") {
		if o.has(f) {
			value = o.set[f]
		}
	}
	if value != "" {
		if n, err = strconv.Atoi(strings.TrimPrefix(value, "+")); err != nil || n < 0 {
			return 0, false, nil, fmt.Errorf("bad number %q", value)
		}
	}
	return n, strings.HasPrefix(value, "+"), o, nil
}

func head(s *stdio, args []string) error {
	n, _, o, err := amount(args, "n:c:")
	if err != nil {
		return err
	}
	return eachInput(s, o.args, func(_ string, r io.Reader) error {
		if o.has('c') {
			_, err := io.CopyN(s.out, r, int64(n))
			if err == io.EOF {
				err = nil
			}
			return err
		}
		left := n
		if left == 0 {
			return nil
		}
		return eachLine(r, func(line string) bool {
			fmt.Fprintln(s.out, line)
			left--
			return left > 0
		})
	})
}

func tail(s *stdio, args []string) error {
	n, fromStart, o, err := amount(args, "n:c:")
	if err != nil {
		return err
	}
	return eachInput(s, o.args, func(_ string, r io.Reader) error {
		if o.has('c') {
			return tailBytes(s, r, n, fromStart)
		}
		var last []string
		at := 0
		err := eachLine(r, func(line string) bool {
			at++
			switch {
			case fromStart && at >= n:
				fmt.Fprintln(s.out, line)
			case !fromStart && n > 0:
				if len(last) == n {
					last = last[1:]
				}
				last = append(last, line)
			}
			return true
		})
		for _, line := range last {
			fmt.Fprintln(s.out, line)
		}
		return err
	})
}

func tailBytes(s *stdio, r io.Reader, n int, fromStart bool) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	from := max(0, len(b)-n)
	if fromStart {
		from = min(len(b), max(0, n-1))
	}
	_, err = s.out.Write(b[from:])
	return err
}

func seq(s *stdio, args []string) error {
	first, step, last := 1, 1, 0
	into := map[int][]*int{1: {&last}, 2: {&first, &last}, 3: {&first, &step, &last}}[len(args)]
	if into == nil {
		return errUsage
	}
	for i, p := range into {
		n, err := strconv.Atoi(args[i])
		if err != nil {
			return err
		}
		*p = n
	}
	if step == 0 {
		return errors.New("step is 0")
	}
	for i := first; step > 0 && i <= last || step < 0 && i >= last; i += step {
		if _, err := fmt.Fprintln(s.out, i); err != nil {
			return err
		}
	}
	return nil
}

func yes(s *stdio, args []string) error {
	line := "y"
	if len(args) > 0 {
		line = strings.Join(args, " ")
	}
	for {
		if _, err := fmt.Fprintln(s.out, line); err != nil {
			return err
		}
	}
}

func tee(s *stdio, args []string) error {
	o, err := parse(args, "a")
	if err != nil {
		return err
	}
	flag := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	if o.has('a') {
		flag = os.O_WRONLY | os.O_CREATE | os.O_APPEND
	}
	to := []io.Writer{flushing{s.out}}
	for _, name := range o.args {
		f, err := os.OpenFile(name, flag, 0o666)
		if err != nil {
			return err
		}
		defer f.Close()
		to = append(to, f)
	}
	_, err = io.Copy(io.MultiWriter(to...), s.in)
	return err
}

// flushing passes on at once what is written.
type flushing struct{ w *bufio.Writer }

func (f flushing) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if err == nil {
		err = f.w.Flush()
	}
	return n, err
}

func cut(s *stdio, args []string) error {
	o, err := parse(args, "d:f:c:s")
	if err != nil {
		return err
	}
	list, sep := o.set['f'], "\t"
	if o.has('c') {
		list, sep = o.set['c'], ""
	} else if o.has('d') {
		sep = o.set['d']
	}
	wanted, err := ranges(list)
	if err != nil {
		return err
	}
	return eachInput(s, o.args, func(_ string, r io.Reader) error {
		return eachLine(r, func(line string) bool {
			f := strings.Split(line, sep)
			if len(f) == 1 && !o.has('c') {
				if !o.has('s') {
					fmt.Fprintln(s.out, line)
				}
				return true
			}
			var keep []string
			for i, v := range f {
				if slices.ContainsFunc(wanted, func(w [2]int) bool { return i+1 >= w[0] && i+1 <= w[1] }) {
					keep = append(keep, v)
				}
			}
			fmt.Fprintln(s.out, strings.Join(keep, sep))
			return true
		})
	})
}

// ranges parses a list such as "1,3-5,7-".
func ranges(list string) ([][2]int, error) {
	var out [][2]int
	for part := range strings.SplitSeq(list, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		if !isRange {
			hi = lo
		}
		r := [2]int{1, 1 << 30}
		var err1, err2 error
		if lo != "" {
			r[0], err1 = strconv.Atoi(lo)
		}
		if hi != "" {
			r[1], err2 = strconv.Atoi(hi)
		}
		if part == "" || part == "-" || err1 != nil || err2 != nil || r[0] < 1 {
			return nil, fmt.Errorf("bad list %q", list)
		}
		out = append(out, r)
	}
	return out, nil
}

func tr(s *stdio, args []string) error {
	o, err := parse(args, "cds")
	if err != nil {
		return err
	}
	if len(o.args) == 0 || len(o.args) == 1 && !o.has('d') && !o.has('s') {
		return errUsage
	}
	from := charSet(o.args[0])
	if o.has('c') {
		from = complement(from)
	}
	to := from
	if len(o.args) > 1 && !o.has('d') {
		to = charSet(o.args[1])
	}
	if len(from) == 0 || len(to) == 0 {
		return errors.New("empty set")
	}
	var remap [256]int
	for i := range remap {
		remap[i] = -1
	}
	for i, c := range from {
		remap[c] = int(to[min(i, len(to)-1)])
	}
	last := -1
	in := bufio.NewReader(s.in)
	for {
		c, err := in.ReadByte()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		switch m := remap[c]; {
		case m < 0:
			last = -1
			s.out.WriteByte(c)
		case o.has('d') || o.has('s') && m == last:
		default:
			last = m
			s.out.WriteByte(byte(m))
		}
	}
}

func complement(set []byte) []byte {
	var out []byte
	for c := range 256 {
		if !slices.Contains(set, byte(c)) {
			out = append(out, byte(c))
		}
	}
	return out
}

// charSet expands a set of tr: ranges, classes and escapes.
func charSet(spec string) []byte {
	for class, set := range map[string]string{
		"[:lower:]": "a-z", "[:upper:]": "A-Z", "[:digit:]": "0-9", "[:alpha:]": "A-Za-z", "[:alnum:]": "A-Za-z0-9", "[:space:]": " \t\n\r\f\v",
	} {
		spec = strings.ReplaceAll(spec, class, set)
	}
	spec = unescape(spec)
	var out []byte
	for i := 0; i < len(spec); i++ {
		if i+2 < len(spec) && spec[i+1] == '-' && spec[i] <= spec[i+2] {
			for c := int(spec[i]); c <= int(spec[i+2]); c++ {
				out = append(out, byte(c))
			}
			i += 2
			continue
		}
		out = append(out, spec[i])
	}
	return out
}
