package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/forkvm/forkvm/api"
)

// decodeJSON decodes one JSON value into what into points to. It is stricter
// than encoding/json: names of fields are as they are written, and there once;
// there is no null but for [api.Opt]; text is UTF-8. Errors are BadRequest and
// name the field.
func decodeJSON(b []byte, into any) error {
	if !utf8.Valid(b) {
		return api.Errorf(api.BadRequest, "body: not UTF-8")
	}
	var all json.RawMessage
	if err := json.Unmarshal(b, &all); err != nil {
		return api.Errorf(api.BadRequest, "body: not JSON: %v", err)
	}
	d := decoder{json.NewDecoder(bytes.NewReader(b))}
	return d.value(reflect.ValueOf(into).Elem(), "")
}

// decoder walks over JSON that is known to be well formed. How deep it goes
// depends on the types, not on what it reads.
type decoder struct {
	*json.Decoder
}

func (d decoder) value(v reflect.Value, path string) error {
	if _, own := v.Addr().Interface().(json.Unmarshaler); own {
		return d.leaf(v, path)
	}
	switch v.Kind() {
	case reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		v.Set(p)
		return d.value(p.Elem(), path)
	case reflect.Struct:
		fields := fieldsOf(v.Type())
		return d.object(path, func(name, path string) error {
			index, ok := fields[name]
			if !ok {
				return api.Errorf(api.BadRequest, "%s: unknown field", path)
			}
			return d.value(v.FieldByIndex(index), path)
		})
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		return d.object(path, func(name, path string) error {
			e := reflect.New(v.Type().Elem()).Elem()
			err := d.value(e, path)
			v.SetMapIndex(reflect.ValueOf(name), e)
			return err
		})
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		return d.array(path, func(path string) error {
			e := reflect.New(v.Type().Elem()).Elem()
			err := d.value(e, path)
			v.Set(reflect.Append(v, e))
			return err
		})
	}
	return d.leaf(v, path)
}

// object calls f before the value of each field.
func (d decoder) object(path string, f func(name, path string) error) error {
	if err := d.open('{', path, "an object"); err != nil {
		return err
	}
	seen := make(map[string]bool)
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		if err != nil || !ok {
			return badField(path, "a name is expected")
		}
		at := name
		if path != "" {
			at = path + "." + name
		}
		at = fmt.Sprintf("%.200s", at)
		if seen[name] {
			return badField(at, "is there twice")
		}
		seen[name] = true
		if err := f(name, at); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

func (d decoder) array(path string, f func(path string) error) error {
	if err := d.open('[', path, "a list"); err != nil {
		return err
	}
	for n := 0; d.More(); n++ {
		if err := f(fmt.Sprintf("%s[%d]", path, n)); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

func (d decoder) open(delim json.Delim, path, what string) error {
	t, err := d.Token()
	if err != nil || t != delim {
		return badField(path, what+" is expected")
	}
	return nil
}

// leaf decodes what has no fields of its own.
func (d decoder) leaf(v reflect.Value, path string) error {
	var raw json.RawMessage
	if err := d.Decode(&raw); err != nil {
		return badField(path, err.Error())
	}
	raw = whole(raw)
	_, optional := v.Interface().(interface{ Given() bool })
	if !optional && string(raw) == "null" {
		return badField(path, "must not be null")
	}
	err := json.Unmarshal(raw, v.Addr().Interface())
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return badField(path, kindName(wrong.Type)+" is expected, not "+wrong.Value)
	}
	if err != nil {
		return badField(path, err.Error())
	}
	return nil
}

var zeroFraction = regexp.MustCompile(`^(-?[0-9]+)\.0+$`)

// whole is a number without a fraction that is zero: 60.0 is an integer of JSON
// Schema, and what programs write that have no others.
func whole(raw json.RawMessage) json.RawMessage {
	if m := zeroFraction.FindSubmatch(raw); m != nil {
		return m[1]
	}
	return raw
}

func badField(path, what string) error {
	if path == "" {
		path = "body"
	}
	return api.Errorf(api.BadRequest, "%s: %s", path, what)
}

// kindName says what JSON is decoded to the type.
func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return fmt.Sprintf("a whole number of %d bits, not negative,", t.Bits())
	}
	return "something else"
}

// known are the fields of types, by their names in JSON: to look for them takes
// as long as all the rest of a small request.
var known sync.Map // reflect.Type to map[string][]int

// fieldsOf are the fields by their names in JSON, with those of embedded
// structs.
func fieldsOf(t reflect.Type) map[string][]int {
	if fields, ok := known.Load(t); ok {
		return fields.(map[string][]int)
	}
	fields := make(map[string][]int)
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.Anonymous && f.IsExported() && name != "" && name != "-" {
			fields[name] = f.Index
		}
	}
	known.Store(t, fields)
	return fields
}
