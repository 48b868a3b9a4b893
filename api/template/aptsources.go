package template

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// debianSuite is what the built-in recipes are made of.
const debianSuite = "bookworm"

// maxSources is how much of one list of sources is read, in bytes.
const maxSources = 1 << 20

// aptSources are the lines by which apt finds the packages of the suite, as
// this machine does: it may be behind a mirror. etc is /etc/apt. Where the
// machine has none, as if it is no Debian, those of the public mirror are
// taken.
func aptSources(etc fs.FS) string {
	var lines []string
	if text, err := fs.ReadFile(etc, "sources.list"); err == nil {
		lines = append(lines, oneLineSources(string(text))...)
	}
	entries, _ := fs.ReadDir(etc, "sources.list.d") // none is fine
	for _, e := range entries {
		text, err := fs.ReadFile(etc, path.Join("sources.list.d", e.Name()))
		if err != nil || len(text) > maxSources {
			continue
		}
		switch path.Ext(e.Name()) {
		case ".list":
			lines = append(lines, oneLineSources(string(text))...)
		case ".sources":
			lines = append(lines, deb822Sources(string(text))...)
		}
	}
	slices.Sort(lines)
	lines = slices.Compact(lines)
	if !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, " "+debianSuite+" ") }) {
		lines = []string{
			"deb http://deb.debian.org/debian " + debianSuite + " main",
			"deb http://deb.debian.org/debian " + debianSuite + "-updates main",
			"deb http://deb.debian.org/debian-security " + debianSuite + "-security main",
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// wantedSuite tells whether a suite is one of Debian's that belong together.
func wantedSuite(s string) bool {
	return s == debianSuite || s == debianSuite+"-updates" || s == debianSuite+"-security" || s == debianSuite+"-security/updates"
}

// oneLineSources are the lines of sources.list(5) that are of use.
func oneLineSources(text string) (lines []string) {
	for l := range strings.Lines(text) {
		l, _, _ = strings.Cut(l, "#")
		rest, ok := strings.CutPrefix(strings.TrimSpace(l), "deb ")
		if !ok {
			continue
		}
		rest = strings.TrimSpace(rest)
		options := ""
		if strings.HasPrefix(rest, "[") {
			inside, after, closed := strings.Cut(rest[1:], "]")
			if !closed {
				continue
			}
			options, rest = "["+strings.TrimSpace(inside)+"] ", after
		}
		words := strings.Fields(rest)
		if len(words) >= 3 && wantedSuite(words[1]) && slices.Contains(words[2:], "main") {
			lines = append(lines, fmt.Sprintf("deb %s%s %s main", options, words[0], words[1]))
		}
	}
	return lines
}

// deb822Sources are the stanzas of a .sources file that are of use, as lines.
func deb822Sources(text string) (lines []string) {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	for stanza := range strings.SplitSeq(text, "\n\n") {
		f := stanzaFields(stanza)
		if !slices.Contains(f["types"], "deb") || !slices.Contains(f["components"], "main") || slices.Equal(f["enabled"], []string{"no"}) {
			continue
		}
		options := ""
		if by := f["signed-by"]; len(by) == 1 && path.IsAbs(by[0]) {
			options = "[signed-by=" + by[0] + "] "
		}
		for _, uri := range f["uris"] {
			for _, suite := range f["suites"] {
				if wantedSuite(suite) {
					lines = append(lines, fmt.Sprintf("deb %s%s %s main", options, uri, suite))
				}
			}
		}
	}
	return lines
}

// stanzaFields are the fields of a stanza, by their names in small letters, as
// words.
func stanzaFields(stanza string) map[string][]string {
	fields := map[string][]string{}
	name := ""
	for l := range strings.Lines(stanza) {
		if strings.HasPrefix(l, "#") {
			continue
		}
		value := l
		if !strings.HasPrefix(l, " ") && !strings.HasPrefix(l, "\t") {
			var ok bool
			if name, value, ok = strings.Cut(l, ":"); !ok {
				name = ""
				continue
			}
			name = strings.ToLower(strings.TrimSpace(name))
		}
		fields[name] = append(fields[name], strings.Fields(value)...)
	}
	return fields
}
