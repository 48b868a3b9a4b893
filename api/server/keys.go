package server

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
)

// MaxKeyFile is how large a key file may be, in bytes.
const MaxKeyFile = 1 << 20

const hashPrefix = "sha256:"

var keyWord = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// Keys are the account keys of teams. Of a key it has the hash only. It does not
// change.
type Keys struct {
	keys []teamKey
}

type teamKey struct {
	team, name string
	hash       [sha256.Size]byte
	admin      bool
}

// adminWord marks the key of an administrator.
const adminWord = "admin"

// ParseKeys reads a key file. Each line is a key,
//
//	TEAM NAME sha256:HEX [admin]
//
// with the hash as [HashKey] has it; admin is an administrator's. A team may have
// several keys, with different names. Empty lines, and those that begin with #, say nothing.
func ParseKeys(file []byte) (*Keys, error) {
	if len(file) > MaxKeyFile {
		return nil, fmt.Errorf("server: key file: larger than %d bytes", MaxKeyFile)
	}
	k := new(Keys)
	named := make(map[[2]string]bool)
	hashed := make(map[[sha256.Size]byte]bool)
	lines := bufio.NewScanner(bytes.NewReader(file))
	lines.Buffer(nil, MaxKeyFile+1)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		key, err := parseKey(line)
		if err != nil {
			return nil, fmt.Errorf("server: key file: line %d: %w", n, err)
		}
		name := [2]string{key.team, key.name}
		if named[name] || hashed[key.hash] {
			return nil, fmt.Errorf("server: key file: line %d: team %s key %s: the name or the key was there before", n, key.team, key.name)
		}
		named[name], hashed[key.hash] = true, true
		k.keys = append(k.keys, key)
	}
	return k, lines.Err()
}

// parseKey reads one line. An error says nothing of what the line has: it may be
// a key in the clear.
func parseKey(line string) (teamKey, error) {
	var k teamKey
	words := strings.Fields(line)
	k.admin = len(words) == 4 && words[3] == adminWord
	if len(words) != 3 && !k.admin {
		return k, fmt.Errorf("%d words, not TEAM NAME %sHEX [%s]", len(words), hashPrefix, adminWord)
	}
	k.team, k.name = words[0], words[1]
	if !keyWord.MatchString(k.team) || !keyWord.MatchString(k.name) {
		return k, fmt.Errorf("names of teams and keys match %s", keyWord)
	}
	digits, ok := strings.CutPrefix(words[2], hashPrefix)
	if !ok || len(digits) != 2*len(k.hash) || strings.ToLower(digits) != digits {
		return k, fmt.Errorf("the hash is no %s and %d lower-case hexadecimal digits", hashPrefix, 2*len(k.hash))
	}
	if _, err := hex.Decode(k.hash[:], []byte(digits)); err != nil {
		return k, fmt.Errorf("the hash has what is no hexadecimal digit")
	}
	return k, nil
}

// NewKey draws an account key.
func NewKey() string { return "fk_" + rand.Text() + rand.Text() }

// HashKey is the key as a key file has it. Keys are random and long, so that one
// round of SHA-256 is enough.
func HashKey(key string) string {
	h := sha256.Sum256([]byte(key))
	return hashPrefix + hex.EncodeToString(h[:])
}

// KeyLine is a line of a key file, without its end.
func KeyLine(team, name, key string, admin bool) (string, error) {
	line := team + " " + name + " " + HashKey(key)
	if admin {
		line += " " + adminWord
	}
	_, err := parseKey(line)
	return line, err
}

// Team tells whose key it is. How long that takes says nothing about keys.
func (k *Keys) Team(key string) (team string, ok bool) {
	found := k.find(key)
	return found.team, found.team != ""
}

// Admin tells whether it is a key of an administrator, as Team does.
func (k *Keys) Admin(key string) bool { return k.find(key).admin }

// find is the zero value if there is no such key.
func (k *Keys) find(key string) (found teamKey) {
	h := sha256.Sum256([]byte(key))
	for i := range k.keys {
		if subtle.ConstantTimeCompare(h[:], k.keys[i].hash[:]) == 1 {
			found = k.keys[i]
		}
	}
	return found
}

// Teams are the teams that have keys, in the order of the file.
func (k *Keys) Teams() []string {
	var teams []string
	seen := make(map[string]bool)
	for _, key := range k.keys {
		if !seen[key.team] {
			seen[key.team] = true
			teams = append(teams, key.team)
		}
	}
	return teams
}
