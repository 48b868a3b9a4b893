package server

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/forkvm/forkvm/api"
)

// FuzzDecode holds the decoder against encoding/json: what it takes, that takes
// too, and they agree.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"argv":["a"],"tty":{"rows":1,"cols":2},"timeout_seconds":null,"stdin":true,"env_vars":{"a":"b"}}`,
		`{"argv":null}`, `{"tty":{"rows":-1}}`, `[[[[`, `{"a":{"b":{}}}`, `{"env_vars":{"\ud800":""}}`, `{"timeout_seconds":1e2}`, "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var got, want api.StartRequest
		err := decodeJSON(b, &got)
		if err != nil {
			if !errors.Is(err, api.BadRequest) {
				t.Errorf("%q: %v", b, err)
			}
			return
		}
		err = json.Unmarshal(b, &want)
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && strings.HasSuffix(wrong.Value, ".0") {
			return // an integer of JSON Schema
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, want %+v, %v", b, got, want, err)
		}
	})
}

func TestWholeNumbers(t *testing.T) {
	for number, want := range map[string]int64{"60": 60, "60.0": 60, "60.000": 60, "-60.0": -60, "-0.0": 0} {
		var r api.StartRequest
		err := decodeJSON([]byte(`{"timeout_seconds":`+number+`}`), &r)
		if v := r.TimeoutSeconds.Value(); err != nil || v == nil || *v != want {
			t.Errorf("%s: %v, %v", number, r.TimeoutSeconds, err)
		}
	}
	for _, number := range []string{"60.5", "60.01", `"60.0"`, "6e1", "99999999999999999999.0"} {
		if err := decodeJSON([]byte(`{"timeout_seconds":`+number+`}`), new(api.StartRequest)); !errors.Is(err, api.BadRequest) {
			t.Errorf("%s: %v", number, err)
		}
	}
}

// FuzzQuery looks that nothing but what is allowed comes through.
func FuzzQuery(f *testing.F) {
	f.Add("state=running&state=paused&metadata.a=b&limit=4")
	f.Add("a=%zz&metadata.=1;b")
	f.Fuzz(func(t *testing.T, raw string) {
		q, err := parseQuery(raw, []string{"state", "limit", metadataPrefix})
		if err != nil {
			if !errors.Is(err, api.BadRequest) {
				t.Errorf("%q: %v", raw, err)
			}
			return
		}
		c := &call{query: q}
		c.states()
		c.metadata()
		if p, err := c.page(); err == nil && (p.Limit < 0 || p.Limit > api.MaxPage) {
			t.Errorf("%q: %+v", raw, p)
		}
		if d, err := c.seconds("limit", 3600); err == nil && (d < 0 || d.Seconds() > 3600) {
			t.Errorf("%q: %v", raw, d)
		}
	})
}
