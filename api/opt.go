package api

import "encoding/json"

// Opt is a setting that may be absent, or be cleared: the zero value is absent,
// Clear is JSON's null. Fields of it have the option omitzero.
type Opt[T any] struct {
	given bool
	value *T
}

// Set is the setting v.
func Set[T any](v T) Opt[T] { return Opt[T]{true, &v} }

// Clear is no setting, where there may be one.
func Clear[T any]() Opt[T] { return Opt[T]{given: true} }

// Given tells whether it is not absent.
func (o Opt[T]) Given() bool { return o.given }

// Value is the setting, nil if it is absent or cleared.
func (o Opt[T]) Value() *T { return o.value }

// Or is the value if o is given, and otherwise old.
func (o Opt[T]) Or(old *T) *T {
	if o.given {
		return o.value
	}
	return old
}

// IsZero tells whether it is absent.
func (o Opt[T]) IsZero() bool { return !o.given }

// MarshalJSON implements [json.Marshaler].
func (o Opt[T]) MarshalJSON() ([]byte, error) { return json.Marshal(o.value) }

// UnmarshalJSON implements [json.Unmarshaler].
func (o *Opt[T]) UnmarshalJSON(b []byte) error {
	var v *T
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	*o = Opt[T]{true, v}
	return nil
}
