package initrd

import (
	"cmp"
	"strings"
)

// compareReleases orders kernel releases as people do: numbers by value, so that
// 6.12.9 comes before 6.12.117, and all else by byte.
func compareReleases(a, b string) int {
	for a != "" && b != "" {
		var x, y string
		x, a = nextPart(a)
		y, b = nextPart(b)
		if c := compareParts(x, y); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(a), len(b))
}

// nextPart cuts the longest run of digits, or of anything else, from s.
func nextPart(s string) (part, rest string) {
	digit := isDigit(s[0])
	end := strings.IndexFunc(s, func(c rune) bool { return isDigit(byte(c)) != digit })
	if end < 0 {
		return s, ""
	}
	return s[:end], s[end:]
}

func compareParts(x, y string) int {
	if isDigit(x[0]) && isDigit(y[0]) {
		x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
		if c := cmp.Compare(len(x), len(y)); c != 0 {
			return c
		}
	}
	return strings.Compare(x, y)
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
