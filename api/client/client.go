package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/internal/wire"
)

// KeyVariable is the environment variable with the account key.
const KeyVariable = "FORKVM_API_KEY"

// Limits of what is taken from a server, in bytes.
const (
	maxAnswer = 256 << 20 // an exec's, at worst
	maxError  = 1 << 20
)

// ErrCut: a stream ended before its last event, or an answer was not whole. What
// it was about goes on.
var ErrCut = errors.New("the server's answer was cut off")

// Options configure a Client.
type Options struct {
	// Key is the account key; empty: that of the environment. A server may
	// need none over its Unix socket, and commands and files need none.
	Key string
	// Transport is for servers at http and https addresses; nil: one like
	// [http.DefaultTransport].
	Transport http.RoundTripper
	// Tries is how often a request that may be repeated is sent at most; 0 is
	// 4.
	Tries int
	// UserAgent is what the client calls itself; empty: forkvm.
	UserAgent string
}

// Client asks a server. It is safe for concurrent use.
type Client struct {
	base string // of URLs, without a slash at the end
	http *http.Client
	o    Options
}

var _ api.Service = (*Client)(nil)

// New returns a client of the server at the address, which is a URL with http,
// https or unix as its scheme (unix:///path), or the absolute path of a Unix
// socket. It does not connect.
func New(address string, o Options) (*Client, error) {
	if o.Key == "" {
		o.Key = os.Getenv(KeyVariable)
	}
	if o.Tries == 0 {
		o.Tries = 4
	}
	if o.UserAgent == "" {
		o.UserAgent = "forkvm"
	}
	if strings.HasPrefix(address, "/") {
		address = "unix://" + address
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("client: address: %w", err)
	}
	c := &Client{base: strings.TrimSuffix(u.String(), "/"), o: o}
	switch {
	case u.Scheme == "unix" && u.Host == "" && u.Path != "":
		c.base, o.Transport = "http://forkvm", socketTransport(u.Path)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, fmt.Errorf("client: address: %q is no http://, https:// or unix:/// URL", address)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("client: address: %q has more than a host and a path", u.Redacted())
	case o.Transport == nil:
		o.Transport = transport()
	}
	c.http = &http.Client{
		Transport: o.Transport,
		// The key is for this server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// CloseIdle closes connections that nothing uses.
func (c *Client) CloseIdle() { c.http.CloseIdleConnections() }

func transport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 100
	t.DisableCompression = true
	t.ExpectContinueTimeout = 5 * time.Second
	return t
}

func socketTransport(path string) *http.Transport {
	t := transport()
	t.Proxy = nil
	t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
	return t
}

// request is what to ask for.
type request struct {
	method, path string
	query        url.Values
	in           any         // in JSON; nil: no body
	body         io.Reader   // instead, streamed
	kind         string      // the content type of body; empty: bytes
	access       *api.Access // nil: with the account's key
	repeats      bool        // may be sent again
	once         bool        // may be sent again, with a key of its own
}

// call asks, and decodes the answer into out unless that is nil.
func (c *Client) call(ctx context.Context, r request, out any) error {
	resp, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return failed(ctx, fmt.Errorf("%w: %w", ErrCut, err))
	}
	if len(b) > maxAnswer {
		return api.Errorf(api.InternalError, "client: the answer is larger than %d bytes", maxAnswer)
	}
	if err := json.Unmarshal(b, out); err != nil {
		return api.Errorf(api.InternalError, "client: the answer is not as expected: %w", err)
	}
	return nil
}

// send sends a request, again if that may help, and returns an answer that is no
// error. The caller closes its body.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	var in []byte
	if r.in != nil {
		var err error
		if in, err = json.Marshal(r.in); err != nil {
			return nil, api.Errorf(api.BadRequest, "client: %w", err)
		}
	}
	key := ""
	if r.once {
		key = rand.Text()
	}
	wait := 50 * time.Millisecond
	for try := 1; ; try++ {
		body := r.body
		if in != nil {
			body = bytes.NewReader(in)
		}
		resp, err := c.sendOnce(ctx, r, body, key)
		if err == nil {
			return resp, nil
		}
		var said *api.Error
		if errors.As(err, &said) {
			return nil, said
		}
		if !r.repeats && !r.once || try >= c.o.Tries || ctx.Err() != nil {
			return nil, failed(ctx, err)
		}
		select {
		case <-time.After(wait):
			wait *= 2
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// sendOnce returns an [*api.Error] only if the server answered with one.
func (c *Client) sendOnce(ctx context.Context, r request, body io.Reader, key string) (*http.Response, error) {
	u := c.base + r.path
	if len(r.query) > 0 {
		u += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u, body)
	if err != nil {
		return nil, err
	}
	c.header(req.Header, r.access)
	if r.in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.body != nil {
		req.Header.Set("Content-Type", cmp.Or(r.kind, "application/octet-stream"))
		req.Header.Set("Expect", "100-continue") // a refusal comes before the body goes
	}
	if key != "" {
		req.Header.Set(wire.IdempotencyKey, key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		defer resp.Body.Close()
		return nil, readError(resp)
	}
	return resp, nil
}

func (c *Client) header(h http.Header, a *api.Access) {
	h.Set("User-Agent", c.o.UserAgent)
	if a != nil {
		h.Set(wire.AccessToken, a.Token)
	} else if c.o.Key != "" {
		h.Set("Authorization", "Bearer "+c.o.Key)
	}
}

// ServerVersion is the version that the server says it has.
func (c *Client) ServerVersion(ctx context.Context) (string, error) {
	var v struct {
		Version string `json:"version"`
	}
	err := c.call(ctx, request{method: http.MethodGet, path: "/version", repeats: true}, &v)
	return v.Version, err
}
