package proto

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestTextKeepsAnyBytes(t *testing.T) {
	for _, s := range []Text{"", "plain", "ünï", "\x00\x01\"\\<>", "\xff\xfe", "a\xc3", "{\"base64\":\"eA==\"}"} {
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var got Text
		if err := json.Unmarshal(b, &got); err != nil || got != s {
			t.Errorf("%q became %s and %q, %v", s, b, got, err)
		}
	}
}

func TestGenerationText(t *testing.T) {
	g := Generation{1, 0xab, 15: 0xff}
	b, err := json.Marshal(g)
	if err != nil || string(b) != `"01ab00000000000000000000000000ff"` {
		t.Fatalf("%s, %v", b, err)
	}
	var got Generation
	if err := json.Unmarshal(b, &got); err != nil || got != g {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{`"01"`, `""`, `"zz000000000000000000000000000000"`, `"01ab00000000000000000000000000ff00"`, `7`} {
		if err := json.Unmarshal([]byte(bad), &got); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}

func TestParseHandshake(t *testing.T) {
	h, err := ParseHandshake(TypeHandshake, []byte(`{"version":1,"generation":"00000000000000000000000000000001","op":"stat","request":{"path":"/"}}`))
	if err != nil || h.Op != OpStat || h.Generation != (Generation{15: 1}) {
		t.Fatalf("%+v, %v", h, err)
	}
	if _, err := ParseHandshake(TypeData, nil); !errors.Is(err, ErrUnexpectedFrame) {
		t.Errorf("another frame first: %v", err)
	}
	// The version is told apart even if the rest has changed.
	var e *Error
	if _, err := ParseHandshake(TypeHandshake, []byte(`{"version":2,"generation":17}`)); !errors.As(err, &e) || e.Code != CodeVersion || e.Version != Version {
		t.Errorf("another version: %v", err)
	}
	for _, bad := range []string{``, `{`, `[]`, `{"version":1}`, `{"version":1,"op":"x","generation":"00"}`, `{"version":"1"}`, strings.Repeat("[", 100000)} {
		if h, err := ParseHandshake(TypeHandshake, []byte(bad)); err == nil {
			t.Errorf("%.20q was taken: %+v", bad, h)
		}
	}
}

func TestValidate(t *testing.T) {
	good := ExecRequest{Path: "p", Args: []Text{"p"}}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for name, r := range map[string]Validator{
		"no program":        &ExecRequest{Args: []Text{"x"}},
		"no argv":           &ExecRequest{Path: "p"},
		"many arguments":    &ExecRequest{Path: "p", Args: make([]Text, MaxArgs+1)},
		"many variables":    &ExecRequest{Path: "p", Args: []Text{"p"}, Env: make([]Text, MaxArgs), ExtraEnv: []Text{"a=b"}},
		"NUL in argument":   &ExecRequest{Path: "p", Args: []Text{"a\x00b"}},
		"NUL in directory":  &ExecRequest{Path: "p", Args: []Text{"p"}, Dir: "\x00"},
		"negative timeout":  &ExecRequest{Path: "p", Args: []Text{"p"}, Timeout: -1},
		"negative signal":   &ProcessRequest{Signal: -9},
		"signal too large":  &ProcessRequest{Signal: 65},
		"no path":           &PathRequest{},
		"NUL in path":       &PathRequest{Path: "a\x00"},
		"NUL in new name":   &PathRequest{Path: "a", To: "\x00"},
		"long path":         &PathRequest{Path: Text(strings.Repeat("a", 5000))},
		"clock before 1970": &ClockRequest{Time: time.Unix(-1, 0)},
		"no entropy":        &EntropyRequest{},
		"no host name":      &HostnameRequest{},
		"renew: nothing":    &RenewRequest{},
	} {
		if r.Validate() == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

// FuzzRequest decodes any bytes as any operation's request. What is accepted
// must survive another round trip unchanged.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"version":1,"op":"exec","request":{"path":"sh","args":["sh","-c","x"],"env":null,"tty":{"rows":1,"cols":2}}}`))
	f.Add([]byte(`{"version":1,"op":"open","request":{"path":{"base64":"/w=="},"flag":577,"mode":420}}`))
	f.Add([]byte(`{"version":1,"op":"renew","request":{"generation":"00000000000000000000000000000001","entropy":"AAAA","wall_clock":"2026-01-02T03:04:05Z"}}`))
	f.Add([]byte(`{"version":1,"op":"signal","request":{"id":18446744073709551615,"signal":9}}`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		h, err := ParseHandshake(TypeHandshake, payload)
		if err != nil {
			return
		}
		for _, req := range []Validator{
			&ExecRequest{}, &ProcessRequest{}, &PathRequest{}, &ClockRequest{}, &EntropyRequest{}, &HostnameRequest{}, &RenewRequest{}, &Empty{},
		} {
			if DecodeRequest(h.Request, req) != nil {
				continue
			}
			b, err := json.Marshal(req)
			if err != nil {
				if strings.Contains(err.Error(), "Time.MarshalJSON") {
					continue // a year that JSON can only be read with
				}
				t.Fatalf("%T %+v: %v", req, req, err)
			}
			again := reflect.New(reflect.TypeOf(req).Elem()).Interface().(Validator)
			if err := DecodeRequest(b, again); err != nil {
				t.Fatalf("%T %s: %v", req, b, err)
			}
			if c, _ := json.Marshal(again); string(c) != string(b) {
				t.Fatalf("%T: %s became %s", req, b, c)
			}
		}
	})
}
