package template

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"syscall"
)

// ignoreFile names files that COPY is not to see.
const ignoreFile = ".dockerignore"

// Limits of an ignore file.
const (
	maxIgnoreFile  = 64 << 10
	maxIgnoreRules = 1000
)

// ignoreRule is a line of an ignore file.
type ignoreRule struct {
	match *regexp.Regexp // a path, or one of the directories it lies in
	keep  bool           // an exception: it began with "!"
}

type ignoreRules []ignoreRule

// readIgnore reads the ignore file of a directory, if it has one.
func readIgnore(root *os.Root) (ignoreRules, error) {
	f, err := root.OpenFile(ignoreFile, os.O_RDONLY|syscall.O_NONBLOCK, 0) // it may be a FIFO
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxIgnoreFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxIgnoreFile {
		return nil, fmt.Errorf("%s is longer than %d bytes", ignoreFile, maxIgnoreFile)
	}
	return parseIgnore(string(text))
}

func parseIgnore(text string) (ignoreRules, error) {
	var rules ignoreRules
	for l := range strings.Lines(text) {
		l = strings.TrimSpace(l)
		if l == "" || strings.HasPrefix(l, "#") {
			continue
		}
		pattern, keep := strings.CutPrefix(l, "!")
		pattern = path.Clean("/" + strings.TrimSpace(pattern))[1:]
		if pattern == "" {
			continue
		}
		re, err := regexp.Compile("^" + globRegexp(pattern) + "(?:/.*)?$")
		if err != nil {
			return nil, fmt.Errorf("%s: bad pattern %.60q", ignoreFile, l)
		}
		if rules = append(rules, ignoreRule{re, keep}); len(rules) > maxIgnoreRules {
			return nil, fmt.Errorf("%s has more than %d lines", ignoreFile, maxIgnoreRules)
		}
	}
	return rules, nil
}

// globRegexp is a pattern as a regular expression: ** is any number of
// directories, * and ? stay within one name.
func globRegexp(pattern string) string {
	var b strings.Builder
	for i := 0; i < len(pattern); i++ {
		rest := pattern[i:]
		switch {
		case strings.HasPrefix(rest, "**/"):
			b.WriteString("(?:.*/)?")
			i += 2
		case strings.HasPrefix(rest, "**"):
			b.WriteString(".*")
			i++
		case rest[0] == '*':
			b.WriteString("[^/]*")
		case rest[0] == '?':
			b.WriteString("[^/]")
		case rest[0] == '[' && strings.Contains(rest, "]"):
			end := strings.IndexByte(rest, ']')
			b.WriteString(rest[:end+1])
			i += end
		case rest[0] == '\\' && len(rest) > 1:
			b.WriteString(regexp.QuoteMeta(rest[1:2]))
			i++
		default:
			b.WriteString(regexp.QuoteMeta(rest[:1]))
		}
	}
	return b.String()
}

// ignores tells whether a path is not to be seen. The last rule that matches
// decides.
func (r ignoreRules) ignores(name string) bool {
	ignored := false
	for _, rule := range r {
		if rule.keep == ignored && rule.match.MatchString(name) {
			ignored = !rule.keep
		}
	}
	return ignored
}

// prunes tells whether nothing in an ignored directory can be seen either.
func (r ignoreRules) prunes() bool {
	for _, rule := range r {
		if rule.keep {
			return false
		}
	}
	return true
}
