package server

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/forkvm/forkvm/api"
)

// metadataPrefix begins a parameter that asks for an entry of the metadata.
const metadataPrefix = "metadata."

// parseQuery takes the parameters in names, each once but for state and
// id, and no others.
func parseQuery(raw string, names []string) (url.Values, error) {
	q, err := url.ParseQuery(raw)
	if err != nil {
		return nil, api.Errorf(api.BadRequest, "query: %w", err)
	}
	for name, values := range q {
		known := slices.Contains(names, name) ||
			strings.HasPrefix(name, metadataPrefix) && slices.Contains(names, metadataPrefix)
		switch {
		case !known || name == metadataPrefix:
			return nil, api.Errorf(api.BadRequest, "query: unknown parameter %.100q", name)
		case len(values) > 1 && name != "state" && name != "id":
			return nil, api.Errorf(api.BadRequest, "query: %.100s: is there %d times", name, len(values))
		}
	}
	return q, nil
}

// need is a parameter that must be there.
func (c *call) need(name string) (string, error) {
	if v := c.query.Get(name); v != "" {
		return v, nil
	}
	return "", api.Errorf(api.BadRequest, "query: %s: missing or empty", name)
}

func (c *call) flag(name string) (bool, error) {
	switch v := c.query[name]; {
	case v == nil || v[0] == "false":
		return false, nil
	case v[0] == "true":
		return true, nil
	}
	return false, api.Errorf(api.BadRequest, "query: %s: true or false is expected", name)
}

// number is a parameter that is a number, or def without.
func (c *call) number(name string, def uint64, base, bits int) (uint64, error) {
	v := c.query[name]
	if v == nil {
		return def, nil
	}
	n, err := strconv.ParseUint(v[0], base, bits)
	if err != nil {
		return 0, api.Errorf(api.BadRequest, "query: %s: %.40q is no number in range", name, v[0])
	}
	return n, nil
}

// seconds is a parameter that is a time in seconds, which may have a fraction.
func (c *call) seconds(name string, most float64) (time.Duration, error) {
	v := c.query[name]
	if v == nil {
		return 0, nil
	}
	s, err := strconv.ParseFloat(v[0], 64)
	if err != nil || !(s >= 0 && s <= most) {
		return 0, api.Errorf(api.BadRequest, "query: %s: %.40q is not from 0 to %v seconds", name, v[0], most)
	}
	return time.Duration(s * float64(time.Second)), nil
}

func (c *call) page() (api.Page, error) {
	n, err := c.number("limit", 0, 10, 31)
	if err == nil && c.query.Has("limit") && (n < 1 || n > api.MaxPage) {
		err = api.Errorf(api.BadRequest, "query: limit: %d is not from 1 to %d", n, api.MaxPage)
	}
	return api.Page{Cursor: c.query.Get("cursor"), Limit: int(n)}, err
}

func (c *call) states() ([]api.State, error) {
	var states []api.State
	for _, s := range c.query["state"] {
		switch s := api.State(s); s {
		case api.Creating, api.Running, api.Pausing, api.Paused, api.Resuming, api.Failed, api.Destroying:
			states = append(states, s)
		default:
			return nil, api.Errorf(api.BadRequest, "query: state: %.40q is none", s)
		}
	}
	return states, nil
}

// metadata is what is asked for of the metadata, nil for nothing.
func (c *call) metadata() map[string]string {
	var m map[string]string
	for name := range c.query {
		if key, ok := strings.CutPrefix(name, metadataPrefix); ok {
			if m == nil {
				m = make(map[string]string)
			}
			m[key] = c.query.Get(name)
		}
	}
	return m
}
