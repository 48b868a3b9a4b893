package proto

import (
	"encoding/json"
	"unicode/utf8"
)

// Text is a string of the guest, such as a file name or an argument. Linux
// allows any bytes but NUL there and JSON only UTF-8, so Text is encoded as
// {"base64": "…"} where it is not UTF-8.
type Text string

type rawText struct {
	Base64 []byte `json:"base64"`
}

// MarshalJSON implements json.Marshaler.
func (t Text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal(rawText{Base64: []byte(t)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *Text) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var raw rawText
		if err := json.Unmarshal(b, &raw); err != nil {
			return err
		}
		*t = Text(raw.Base64)
		return nil
	}
	return json.Unmarshal(b, (*string)(t))
}

// Texts converts strings.
func Texts(s []string) []Text {
	if s == nil {
		return nil
	}
	t := make([]Text, len(s))
	for i := range s {
		t[i] = Text(s[i])
	}
	return t
}

// Strings converts texts.
func Strings(t []Text) []string {
	if t == nil {
		return nil
	}
	s := make([]string, len(t))
	for i := range t {
		s[i] = string(t[i])
	}
	return s
}
