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
	want := Handshake{Version: Version, Generation: Generation{15: 1}, Op: OpStat, Request: []byte(`{"path":"/"}`)}
	h, err := ParseHandshake(TypeHandshake, want.Append(nil))
	if err != nil || !reflect.DeepEqual(h, want) {
		t.Fatalf("%+v, %v", h, err)
	}
	if _, err := ParseHandshake(TypeData, nil); !errors.Is(err, ErrUnexpectedFrame) {
		t.Errorf("another frame first: %v", err)
	}
	// The version is told apart even if the rest has changed.
	for payload, version := range map[string]int{"\x03": 3, "\xff\xff": 255, `{"version":1,"generation":17}`: 1} {
		var e *Error
		h, err := ParseHandshake(TypeHandshake, []byte(payload))
		if !errors.As(err, &e) || e.Code != CodeVersion || e.Version != Version || h.Version != version {
			t.Errorf("version %d: %+v, %v", version, h, err)
		}
	}
	whole := (&Handshake{Version: Version, Op: OpStat}).Append(nil)
	for n := range whole {
		if h, err := ParseHandshake(TypeHandshake, whole[:n]); err == nil {
			t.Errorf("the first %d bytes were taken: %+v", n, h)
		}
	}
	if h, err := ParseHandshake(TypeHandshake, (&Handshake{Version: Version}).Append(nil)); err == nil {
		t.Errorf("no operation was taken: %+v", h)
	}
}

// TestMessagesSurvive encodes and decodes messages of which every field says
// something.
func TestMessagesSurvive(t *testing.T) {
	at := time.Unix(1234567890, 123456789)
	for _, tc := range []struct{ in, out any }{
		{ExecRequest{
			Path: "p\xff", Args: []Text{"p", "", "\xfe"}, Env: []Text{"A=1"}, ExtraEnv: []Text{"B=2"}, Dir: "/d", User: "u:g",
			Stdin: true, TTY: &WinSize{Rows: 0x1234, Cols: 0x5678}, Timeout: time.Hour, Detach: true, IdleTimeout: time.Minute,
		}, &ExecRequest{}},
		{ExecRequest{Path: "p", Args: []Text{"p"}}, &ExecRequest{}},
		{ExecRequest{Path: "p", Args: []Text{"p"}, Env: []Text{}, Detach: true}, &ExecRequest{}},
		{Started{ID: 1<<64 - 1, PID: 4194304}, &Started{}},
		{Exit{Code: -1, Signal: 9, TimedOut: true, LostStdout: 1 << 40, LostStderr: 7}, &Exit{}},
		{RenewRequest{Generation: Generation{1, 15: 2}, Entropy: []byte{1, 2}, WallClock: at, Hostname: "h"}, &RenewRequest{}},
		{RenewReply{Generation: Generation{3}, WallClock: at, Hostname: "h", Random: []byte{0}}, &RenewReply{}},
		{Link{Target: "\xff"}, &Link{}},
	} {
		b, err := Encode(tc.in)
		if err != nil {
			t.Fatal(err)
		}
		if err := Decode(b, tc.out); err != nil || !reflect.DeepEqual(reflect.ValueOf(tc.out).Elem().Interface(), tc.in) {
			t.Errorf("%T %+v became %+v, %v", tc.in, tc.in, tc.out, err)
		}
		for n := range b {
			if err := Decode(b[:n], reflect.New(reflect.TypeOf(tc.in)).Interface()); err == nil {
				t.Errorf("%T: the first %d of %d bytes were taken", tc.in, n, len(b))
			}
		}
		if err := Decode(append(b, 1), reflect.New(reflect.TypeOf(tc.in)).Interface()); err == nil {
			t.Errorf("%T: a byte too many was taken", tc.in)
		}
	}
}

// TestMalformedMessages decodes what says more than is there, or what means
// nothing.
func TestMalformedMessages(t *testing.T) {
	for name, tc := range map[string]struct {
		b string
		v any
	}{
		"endless number":  {strings.Repeat("\xff", 20), &Started{}},
		"endless list":    {"\x00\x00\xff\xff\xff\xff\x0f", &ExecRequest{}},
		"endless string":  {"\x00\xff\xff\xff\xff\x0f", &ExecRequest{}},
		"unknown flag":    {"\x20\x00\x00\x00\x00\x00\x00\x00", &ExecRequest{}},
		"Env unannounced": {"\x00\x00\x00\x01\x00\x00\x00\x00\x00", &ExecRequest{}},
		"long second":     {strings.Repeat("\x00", 18) + "\x80\x94\xeb\xdc\x03\x00", &RenewRequest{}},
	} {
		if err := Decode([]byte(tc.b), tc.v); err == nil {
			t.Errorf("%s was taken: %+v", name, tc.v)
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
		"negative idle":     &ExecRequest{Path: "p", Args: []Text{"p"}, IdleTimeout: -1},
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

// FuzzRequest decodes any bytes as any operation's request or reply. What is
// accepted must survive another round trip unchanged.
func FuzzRequest(f *testing.F) {
	seed := func(op Op, v any) {
		b, err := Encode(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add((&Handshake{Version: Version, Op: op, Request: b}).Append(nil))
	}
	seed(OpExec, ExecRequest{Path: "sh", Args: []Text{"sh", "-c", "x"}, TTY: &WinSize{Rows: 1, Cols: 2}})
	seed(OpOpen, PathRequest{Path: "\xff", Flag: 577, Mode: 420})
	seed(OpRenew, RenewRequest{Generation: Generation{1}, Entropy: make([]byte, MinEntropy), WallClock: time.Unix(1e9, 5)})
	seed(OpSignal, ProcessRequest{ID: 1<<64 - 1, Signal: 9})
	seed(OpList, Exit{Code: 1, Signal: 2})
	f.Fuzz(func(t *testing.T, payload []byte) {
		h, err := ParseHandshake(TypeHandshake, payload)
		if err != nil {
			return
		}
		for _, v := range []any{
			&ExecRequest{}, &ProcessRequest{}, &PathRequest{}, &ClockRequest{}, &EntropyRequest{}, &HostnameRequest{}, &RenewRequest{}, &Empty{},
			&RenewReply{}, &Started{}, &Exit{},
		} {
			if Decode(h.Request, v) != nil {
				continue
			}
			if r, ok := v.(Validator); ok && r.Validate() != nil {
				continue
			}
			b, err := Encode(v)
			if err != nil {
				if strings.Contains(err.Error(), "Time.MarshalJSON") {
					continue // a year that JSON can only be read with
				}
				t.Fatalf("%T %+v: %v", v, v, err)
			}
			again := reflect.New(reflect.TypeOf(v).Elem()).Interface()
			if err := Decode(b, again); err != nil {
				t.Fatalf("%T %q: %v", v, b, err)
			}
			if c, _ := Encode(again); string(c) != string(b) {
				t.Fatalf("%T: %q became %q", v, b, c)
			}
		}
	})
}
