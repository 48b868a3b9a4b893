package snapshot

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
)

// idLength is the length of an id: 130 bits in base 32.
const idLength = 26

// newID makes an id that nobody can guess.
func newID() string { return strings.ToLower(rand.Text()) }

// CheckID tells whether id has the form of a snapshot's id: 26 characters of
// a–z and 2–7. An id becomes the name of a file, so everything in this package
// that takes one checks it. The error wraps [ErrBadID].
func CheckID(id string) error {
	ok := len(id) == idLength
	for i := 0; ok && i < len(id); i++ {
		ok = id[i] >= 'a' && id[i] <= 'z' || id[i] >= '2' && id[i] <= '7'
	}
	if !ok {
		if len(id) > 2*idLength {
			id = id[:2*idLength] + "…"
		}
		return fmt.Errorf("snapshot: %w: %q", ErrBadID, id)
	}
	return nil
}

// Sum identifies what a layer holds. See [Store] for what it is computed of.
type Sum [32]byte

// String is the sum in lower-case hexadecimal.
func (s Sum) String() string { return hex.EncodeToString(s[:]) }

// MarshalText implements [encoding.TextMarshaler].
func (s Sum) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler]. There is one spelling
// of a sum, as it is also the name of a file.
func (s *Sum) UnmarshalText(text []byte) error {
	var sum Sum
	if len(text) != hex.EncodedLen(len(sum)) {
		return fmt.Errorf("sum of %d characters", len(text))
	}
	if _, err := hex.Decode(sum[:], text); err != nil || sum.String() != string(text) {
		return fmt.Errorf("sum is not lower-case hexadecimal: %q", text)
	}
	*s = sum
	return nil
}
