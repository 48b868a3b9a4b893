package server

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/internal/wire"
)

// Defaults of a [Config].
const (
	DefaultMaxBody   = 8 << 20
	DefaultKeepAlive = 15 * time.Second
)

// bodyTimeout is how long a client may take to send a body of JSON.
const bodyTimeout = 60 * time.Second

// Sandbox is what is done inside a sandbox. Every [api.Service] is one.
type Sandbox interface {
	api.Commands
	api.Files
}

// Config says what to serve. Account and Open must be set; all functions are
// safe for concurrent use.
type Config struct {
	// Account is what the team can do.
	Account func(team string) (api.Service, error)
	// Open is what the token of a sandbox opens. The error is NotFound if there
	// is no such sandbox, and Unauthorized if the token is not its token. Tokens
	// are compared in constant time.
	Open func(a api.Access) (Sandbox, error)

	// Authenticate tells whose account key it is, in a time that does not
	// depend on how much of it is right, as [Keys.Team] does. Nil: there are no
	// keys.
	Authenticate func(key string) (team string, ok bool)
	// Admin tells of a key that Authenticate knows whether it is an
	// administrator's, who builds and deletes templates. Nil: none is.
	Admin func(key string) bool
	// SocketTeam is the team of requests without a key over a Unix socket.
	// Empty: they need one too. They are an administrator's.
	SocketTeam string

	Logger   *slog.Logger         // nil: discard
	Registry *prometheus.Registry // for the server's metrics, and to serve; nil: a new one
	Version  string

	// MaxBody is how large a body of JSON may be, in bytes; 0 is
	// DefaultMaxBody. Files and archives are of any size.
	MaxBody int64
	// KeepAlive is how often something is sent on a stream where nothing
	// happens; 0 is DefaultKeepAlive.
	KeepAlive time.Duration
}

type server struct {
	Config
	mux     *http.ServeMux
	once    *once
	metrics *metrics
}

// New returns a handler of the API. It panics if Registry already has metrics of
// another server.
func New(c Config) http.Handler {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Registry == nil {
		c.Registry = prometheus.NewRegistry()
	}
	if c.MaxBody == 0 {
		c.MaxBody = DefaultMaxBody
	}
	if c.KeepAlive == 0 {
		c.KeepAlive = DefaultKeepAlive
	}
	s := &server{Config: c, mux: http.NewServeMux(), once: newOnce(), metrics: newMetrics(c.Registry)}
	for _, r := range routes() {
		s.mux.Handle(r.method+" "+r.path, s.handler(r))
	}
	return s
}

// ServeHTTP implements [http.Handler].
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rw := &response{ResponseWriter: w, rec: s.begin(w, r)}
	defer s.end(rw, r)
	if path.Clean(r.URL.Path) != r.URL.Path {
		s.fail(rw, r, api.Errorf(api.NotFound, "no such path: %.200q", r.URL.Path))
		return
	}
	h, pattern := s.mux.Handler(r)
	if pattern == "" {
		s.noRoute(h, rw, r)
		return
	}
	rw.rec.route = pattern
	s.mux.ServeHTTP(rw, r)
}

// noRoute answers what the mux has no handler for. Whether that is the path's
// fault or the method's, its own answer h says.
func (s *server) noRoute(h http.Handler, w *response, r *http.Request) {
	own := &discard{header: make(http.Header)}
	h.ServeHTTP(own, r)
	if own.status != http.StatusMethodNotAllowed {
		s.fail(w, r, api.Errorf(api.NotFound, "no such path: %.200q", r.URL.Path))
		return
	}
	s.noMethod(w, r, own.header.Get("Allow"))
}

func (s *server) noMethod(w *response, r *http.Request, allow string) {
	w.Header().Set("Allow", allow)
	a := newAnswer(0, nil, api.Errorf(api.BadRequest, "method: %.40q is none of this path", r.Method))
	a.status = http.StatusMethodNotAllowed
	a.write(w)
}

// discard takes an answer for its status and header.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(status int)      { d.status = status }

// who is let in.
type who int

const (
	anyone  who = iota
	account     // with the key of an account
	admin       // with that of an administrator
	token       // with the token of a sandbox
)

// route is a path, and what it does: act, for an answer of JSON, or serve.
type route struct {
	method, path string
	who          who
	query        []string // parameters that there may be; metadataPrefix: any that begin so
	act          func(*call) (any, error)
	body         bool // act looks at a body
	status       int  // of act if it goes well; 0 is 200
	once         bool // takes an idempotency key
	serve        func(*call) error
}

// call is a request under way.
type call struct {
	*server
	w     *response
	r     *http.Request
	rec   *record
	query url.Values
	body  []byte  // of requests that are acted on
	in    *upload // of those that hand on their body
	// stop undoes that the connection fails when the context ends.
	stop func() bool
	// events is the answer if it is a stream.
	events *stream

	svc    api.Service // of the account
	box    Sandbox     // of the token
	access api.Access
}

func (c *call) ctx() context.Context { return c.r.Context() }

func (s *server) handler(rt route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &call{server: s, w: w.(*response), r: r}
		c.rec = c.w.rec
		// Whoever waits for the peer stops when the context does.
		c.stop = context.AfterFunc(r.Context(), func() {
			rc, past := http.NewResponseController(c.w.ResponseWriter), time.Unix(1, 0)
			rc.SetReadDeadline(past)
			rc.SetWriteDeadline(past)
		})
		defer c.stop()
		if r.Method != rt.method { // HEAD, for which the mux takes GET
			s.noMethod(c.w, r, rt.method)
			return
		}
		defer func() {
			if c.events != nil {
				c.events.close() // also if there was a panic
			}
		}()
		if err := c.carryOut(rt); err != nil {
			s.fail(c.w, r, err)
		}
		c.linger()
	})
}

func (c *call) carryOut(rt route) error {
	if err := c.admit(rt); err != nil {
		return err
	}
	if rt.serve != nil {
		return rt.serve(c)
	}
	a, err := c.answer(rt)
	if err != nil {
		return err
	}
	if a.err != nil {
		c.note(c.w, c.r, a.err)
	}
	a.write(c.w)
	return nil
}

// admit checks what can be checked before the body is read.
func (c *call) admit(rt route) (err error) {
	switch rt.who {
	case account:
		_, err = c.authenticate()
	case admin:
		err = c.authenticateAdmin()
	case token:
		err = c.open()
	}
	if err != nil {
		return err
	}
	c.query, err = parseQuery(c.r.URL.RawQuery, rt.query)
	return err
}

// answer acts on a request, or finds what was answered to it before.
func (c *call) answer(rt route) (a answer, err error) {
	if c.body, err = c.readBody(); err != nil {
		return a, err
	}
	if !rt.body {
		if err := c.decode(&struct{}{}); err != nil {
			return a, err
		}
	}
	act := func() answer {
		v, err := rt.act(c)
		return newAnswer(rt.status, v, err)
	}
	key := c.r.Header.Get(wire.IdempotencyKey)
	if !rt.once || key == "" {
		return act(), nil
	}
	if err := checkOnceKey(key); err != nil {
		return a, err
	}
	return c.once.do(c.ctx(), c.rec.team, key, c.fingerprint(), act)
}

// readBody reads all of a body of JSON.
func (c *call) readBody() ([]byte, error) {
	if c.r.ContentLength == 0 {
		return nil, nil
	}
	rc := http.NewResponseController(c.w)
	rc.SetReadDeadline(time.Now().Add(bodyTimeout)) // unless the writer knows no such thing
	b, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, c.MaxBody))
	if err != nil {
		return nil, api.Errorf(api.BadRequest, "body: %w", err)
	}
	rc.SetReadDeadline(time.Time{})
	return b, c.ctx().Err()
}
