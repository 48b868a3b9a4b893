package applet

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

func test(s *stdio, args []string) error {
	e := &expression{args: args}
	result, err := false, error(nil)
	if len(args) > 0 {
		result, err = e.or()
		if err == nil && len(e.args) > 0 {
			err = fmt.Errorf("unexpected %q", e.args[0])
		}
	}
	if err != nil {
		fmt.Fprintf(s.err, "test: %v\n", err)
		return exitCode(2)
	}
	if !result {
		return exitCode(1)
	}
	return nil
}

func bracket(s *stdio, args []string) error {
	if len(args) == 0 || args[len(args)-1] != "]" {
		fmt.Fprintln(s.err, "[: missing ]")
		return exitCode(2)
	}
	return test(s, args[:len(args)-1])
}

// expression is what is left to parse of test(1)'s arguments.
type expression struct{ args []string }

func (e *expression) next() string {
	a := e.args[0]
	e.args = e.args[1:]
	return a
}

func (e *expression) accept(word string) bool {
	if len(e.args) == 0 || e.args[0] != word {
		return false
	}
	e.args = e.args[1:]
	return true
}

func (e *expression) or() (bool, error) {
	result, err := e.and()
	for err == nil && e.accept("-o") {
		var r bool
		r, err = e.and()
		result = result || r
	}
	return result, err
}

func (e *expression) and() (bool, error) {
	result, err := e.primary()
	for err == nil && e.accept("-a") {
		var r bool
		r, err = e.primary()
		result = result && r
	}
	return result, err
}

func (e *expression) primary() (bool, error) {
	switch {
	case len(e.args) == 0:
		return false, errors.New("argument expected")
	case len(e.args) >= 3 && isBinary(e.args[1]):
		a, op, b := e.next(), e.next(), e.next()
		return binary(a, op, b)
	case len(e.args) >= 2 && e.args[0] == "!":
		e.next()
		r, err := e.primary()
		return !r, err
	case len(e.args) >= 3 && e.args[0] == "(":
		e.next()
		r, err := e.or()
		if err == nil && !e.accept(")") {
			err = errors.New("missing )")
		}
		return r, err
	case len(e.args) >= 2 && len(e.args[0]) == 2 && e.args[0][0] == '-':
		return unary(e.next()[1], e.next())
	}
	return e.next() != "", nil
}

func isBinary(op string) bool {
	switch op {
	case "=", "==", "!=", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot":
		return true
	}
	return false
}

func binary(a, op, b string) (bool, error) {
	switch op {
	case "=", "==":
		return a == b, nil
	case "!=":
		return a != b, nil
	case "-nt", "-ot":
		x, err1 := os.Stat(a)
		y, err2 := os.Stat(b)
		if err1 != nil || err2 != nil {
			return (op == "-nt") == (err1 == nil) && (err1 == nil) != (err2 == nil), nil
		}
		if op == "-nt" {
			return x.ModTime().After(y.ModTime()), nil
		}
		return x.ModTime().Before(y.ModTime()), nil
	}
	x, err1 := strconv.ParseInt(a, 10, 64)
	y, err2 := strconv.ParseInt(b, 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return false, err
	}
	switch op {
	case "-eq":
		return x == y, nil
	case "-ne":
		return x != y, nil
	case "-lt":
		return x < y, nil
	case "-le":
		return x <= y, nil
	case "-gt":
		return x > y, nil
	}
	return x >= y, nil
}

func unary(op byte, a string) (bool, error) {
	switch op {
	case 'n':
		return a != "", nil
	case 'z':
		return a == "", nil
	case 't':
		fd, err := strconv.Atoi(a)
		if err != nil {
			return false, err
		}
		_, err = unix.IoctlGetTermios(fd, unix.TCGETS)
		return err == nil, nil
	case 'r', 'w', 'x':
		mode := map[byte]uint32{'r': unix.R_OK, 'w': unix.W_OK, 'x': unix.X_OK}[op]
		return unix.Access(a, mode) == nil, nil
	case 'h', 'L':
		st, err := os.Lstat(a)
		return err == nil && st.Mode()&os.ModeSymlink != 0, nil
	}
	st, err := os.Stat(a)
	exists := err == nil
	switch op {
	case 'e':
		return exists, nil
	case 'f':
		return exists && st.Mode().IsRegular(), nil
	case 'd':
		return exists && st.IsDir(), nil
	case 's':
		return exists && st.Size() > 0, nil
	case 'p':
		return exists && st.Mode()&os.ModeNamedPipe != 0, nil
	case 'S':
		return exists && st.Mode()&os.ModeSocket != 0, nil
	case 'b':
		return exists && st.Mode()&os.ModeDevice != 0 && st.Mode()&os.ModeCharDevice == 0, nil
	case 'c':
		return exists && st.Mode()&os.ModeCharDevice != 0, nil
	}
	return false, fmt.Errorf("unknown test -%c", op)
}
