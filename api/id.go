package api

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"regexp"
	"time"
)

// Prefixes of ids.
const (
	SandboxPrefix  = "sb_"
	SnapshotPrefix = "sn_"
)

// Lower-case base 32 in the order of ASCII: ids sort as their bytes do.
var idEncoding = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)

var idForm = regexp.MustCompile(`^[0-9a-v]{32}$`)

// NewID draws an id: after the prefix 48 bits of the time in milliseconds, by
// which ids sort, and 112 random bits, which nobody guesses.
func NewID(prefix string, now time.Time) string {
	var b [20]byte
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(now.UnixMilli()))
	copy(b[:], ms[2:])
	rand.Read(b[6:]) // never fails
	return prefix + idEncoding.EncodeToString(b[:])
}

// CheckID tells whether id has the form of an id with the prefix. The error is
// NotFound: what has no id does not exist.
func CheckID(prefix, id string) error {
	if len(id) < len(prefix) || id[:len(prefix)] != prefix || !idForm.MatchString(id[len(prefix):]) {
		return Errorf(NotFound, "%.80q is no id of ours", id)
	}
	return nil
}

// NewToken draws an access token.
func NewToken() string { return fmt.Sprintf("tok_%s", rand.Text()) }
