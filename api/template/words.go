package template

import (
	"errors"
	"fmt"
	"strings"
)

// maxWord is how long a word may become by replacing variables, in bytes.
const maxWord = 64 << 10

// maxNesting is how deep a default of a variable may lie in another's.
const maxNesting = 8

var (
	errQuote    = errors.New("a quote that is not closed")
	errBrace    = errors.New("${ that is not closed")
	errNesting  = errors.New("variables nested too deep")
	errLongWord = fmt.Errorf("a word of more than %d bytes", maxWord)
)

// splitWords splits at white space that is not quoted. Quotes and backslashes
// stay: expand removes them.
func splitWords(s string) ([]string, error) {
	var words []string
	start := -1 // of the word
	var quoted byte
	for i := 0; i < len(s); i++ {
		c := s[i]
		space := c == ' ' || c == '\t'
		switch {
		case quoted == 0 && space:
			if start >= 0 {
				words = append(words, s[start:i])
				start = -1
			}
			continue
		case quoted != 0 && c == quoted:
			quoted = 0
		case quoted == 0 && (c == '"' || c == '\''):
			quoted = c
		}
		if start < 0 {
			start = i
		}
		if c == '\\' && quoted != '\'' && i+1 < len(s) {
			i++
		}
	}
	if quoted != 0 {
		return nil, errQuote
	}
	if start >= 0 {
		words = append(words, s[start:])
	}
	return words, nil
}

// quote is a word that expand leaves as it is, but for variables.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// expand removes quotes and replaces $NAME, ${NAME}, ${NAME:-WORD} and
// ${NAME:+WORD}; the colon may be missing as in the shell. What lookup does
// not know is empty.
func expand(word string, lookup func(string) (string, bool)) (string, error) {
	e := expander{in: word, lookup: lookup}
	if err := e.until(0, 0); err != nil {
		return "", err
	}
	return e.out.String(), nil
}

type expander struct {
	in     string
	pos    int
	out    strings.Builder
	lookup func(string) (string, bool)
	mute   int // within words that are not wanted
}

func (e *expander) write(s string) error {
	if e.mute > 0 {
		return nil
	}
	if e.out.Len()+len(s) > maxWord {
		return errLongWord
	}
	e.out.WriteString(s)
	return nil
}

// until goes on to the byte end, or for 0 to the end of the word.
func (e *expander) until(end byte, depth int) error {
	var quoted byte
	for e.pos < len(e.in) {
		c := e.in[e.pos]
		e.pos++
		var err error
		switch {
		case c == end && end != 0 && quoted == 0:
			return nil
		case quoted == '\'' && c != '\'':
			err = e.write(string([]byte{c}))
		case quoted != 0 && c == quoted:
			quoted = 0
		case quoted == 0 && (c == '"' || c == '\''):
			quoted = c
		case c == '\\':
			err = e.escaped(quoted)
		case c == '$':
			err = e.variable(depth)
		default:
			err = e.write(string([]byte{c}))
		}
		if err != nil {
			return err
		}
	}
	switch {
	case quoted != 0:
		return errQuote
	case end != 0:
		return errBrace
	}
	return nil
}

// escaped is what follows a backslash. In double quotes it is special before
// what is special there only.
func (e *expander) escaped(quoted byte) error {
	if e.pos == len(e.in) {
		return e.write(`\`)
	}
	c := e.in[e.pos]
	e.pos++
	if quoted == '"' && c != '"' && c != '$' && c != '\\' {
		return e.write(`\` + string([]byte{c}))
	}
	return e.write(string([]byte{c}))
}

// variable is what follows a dollar sign.
func (e *expander) variable(depth int) error {
	if e.pos < len(e.in) && e.in[e.pos] == '{' {
		e.pos++
		return e.braced(depth + 1)
	}
	name := e.name()
	if name == "" {
		return e.write("$")
	}
	value, _ := e.lookup(name)
	return e.write(value)
}

func (e *expander) braced(depth int) error {
	if depth > maxNesting {
		return errNesting
	}
	name := e.name()
	if name == "" {
		return errors.New("${ without a name")
	}
	value, set := e.lookup(name)
	rest := e.in[e.pos:]
	if strings.HasPrefix(rest, "}") {
		e.pos++
		return e.write(value)
	}
	if strings.HasPrefix(rest, ":") {
		e.pos, rest, set = e.pos+1, rest[1:], set && value != ""
	}
	if rest == "" {
		return errBrace
	}
	e.pos++
	switch rest[0] {
	case '-':
		if set {
			if err := e.write(value); err != nil {
				return err
			}
		}
		return e.word(!set, depth)
	case '+':
		return e.word(set, depth)
	}
	return fmt.Errorf("${%s is followed by %q, which is not supported", name, rest[:1])
}

// word is the rest of a variable in braces.
func (e *expander) word(wanted bool, depth int) error {
	if !wanted {
		e.mute++
		defer func() { e.mute-- }()
	}
	return e.until('}', depth)
}

// name reads the name of a variable, if there is one.
func (e *expander) name() string {
	begin := e.pos
	for e.pos < len(e.in) {
		c := e.in[e.pos]
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (e.pos == begin || c < '0' || c > '9') {
			break
		}
		e.pos++
	}
	return e.in[begin:e.pos]
}
