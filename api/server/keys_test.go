package server

import (
	"strings"
	"testing"
)

func TestKeys(t *testing.T) {
	one, two := NewKey(), NewKey()
	if one == two || len(one) < 50 {
		t.Fatalf("keys %s and %s", one, two)
	}
	var file strings.Builder
	file.WriteString("# keys\n\n")
	for _, l := range [][3]string{{"red", "laptop", one}, {"blue", "ci", two}} {
		line, err := KeyLine(l[0], l[1], l[2], l[0] == "red")
		if err != nil {
			t.Fatal(err)
		}
		file.WriteString("  " + line + "\r\n")
	}
	k, err := ParseKeys([]byte(file.String()))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(file.String(), one) {
		t.Error("the file has a key in the clear")
	}
	for key, want := range map[string]string{one: "red", two: "blue", "": "", one + "x": "", HashKey(one): ""} {
		if team, ok := k.Team(key); team != want || ok != (want != "") {
			t.Errorf("%q: team %q, %v", key, team, ok)
		}
		if k.Admin(key) != (want == "red") {
			t.Errorf("%q: an administrator's: %v", key, k.Admin(key))
		}
	}
	if teams := k.Teams(); len(teams) != 2 || teams[0] != "red" {
		t.Errorf("teams %q", teams)
	}
}

func TestKeyFilesThatAreNone(t *testing.T) {
	hash := HashKey("k")
	for _, file := range []string{
		"team", "team name", "team name sha256:", "team name " + hash + " x", "team name " + hash + " Admin", "team name " + hash + " admin admin", "admin team name " + hash, "team name " + strings.ToUpper(hash),
		"team name " + hash[:len(hash)-1] + "g", "Team name " + hash, "te/am name " + hash, "team n\x00 " + hash,
		"a n " + hash + "\nb n " + hash, "a n " + hash + "\na n " + HashKey("l"), "a n fk_secret",
		strings.Repeat("#\n", MaxKeyFile),
	} {
		if k, err := ParseKeys([]byte(file)); err == nil || strings.Contains(err.Error(), "fk_secret") {
			t.Errorf("%.80q: %v, %v", file, k, err)
		}
	}
	if _, err := KeyLine("a b", "n", "k", false); err == nil {
		t.Error("a team with a space was taken")
	}
}

func FuzzKeys(f *testing.F) {
	f.Add([]byte("team name "+HashKey("k")+"\n# x\n"), "k")
	f.Add([]byte("team name "+HashKey("k")+" admin"), "k")
	f.Add([]byte("a n sha256:zz"), "")
	f.Fuzz(func(t *testing.T, file []byte, key string) {
		k, err := ParseKeys(file)
		if err != nil {
			return
		}
		if team, ok := k.Team(key); ok && !strings.Contains(string(file), HashKey(key)) {
			t.Errorf("key %q is of team %q", key, team)
		}
		if k.Admin(key) && !strings.Contains(string(file), HashKey(key)) {
			t.Errorf("key %q is an administrator's", key)
		}
	})
}
