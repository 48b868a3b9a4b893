package server

import (
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/internal/wire"
)

// authenticate finds whose account the request is for. The key is empty if the
// socket stands for one.
func (c *call) authenticate() (key string, err error) {
	key, err = accountKey(c.r)
	if err != nil {
		return key, err
	}
	team, ok := "", false
	switch {
	case key == "" && c.SocketTeam != "" && overSocket(c.r):
		team, ok = c.SocketTeam, true
	case key == "":
		return key, api.Errorf(api.Unauthorized, "no account key: set Authorization: Bearer KEY, or %s", wire.AccountKey)
	case c.Authenticate != nil:
		team, ok = c.Authenticate(key)
	}
	if !ok {
		return key, api.Errorf(api.Unauthorized, "this is no account key")
	}
	c.rec.team = team
	c.svc, err = c.Account(team)
	return key, err
}

// authenticateAdmin is authenticate for what concerns all teams.
func (c *call) authenticateAdmin() error {
	key, err := c.authenticate()
	if err != nil {
		return err
	}
	if key != "" && (c.Admin == nil || !c.Admin(key)) {
		return api.Errorf(api.Forbidden, "this takes the key of an administrator")
	}
	return nil
}

// accountKey is the key in the headers, empty if there is none.
func accountKey(r *http.Request) (string, error) {
	key := r.Header.Get(wire.AccountKey)
	auth := r.Header.Get("Authorization")
	if auth == "" {
		return key, nil
	}
	scheme, bearer, _ := strings.Cut(auth, " ")
	if bearer = strings.TrimSpace(bearer); !strings.EqualFold(scheme, "Bearer") || bearer == "" {
		return "", api.Errorf(api.Unauthorized, "Authorization: Bearer KEY is expected")
	}
	if key != "" && key != bearer {
		return "", api.Errorf(api.Unauthorized, "Authorization and %s differ", wire.AccountKey)
	}
	return bearer, nil
}

// overSocket tells whether the request came over a Unix socket.
func overSocket(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && addr.Network() == "unix"
}

// open finds the sandbox that the token is of.
func (c *call) open() error {
	id, err := c.sandboxID()
	if err != nil {
		return err
	}
	t := c.r.Header.Get(wire.AccessToken)
	if t == "" {
		return api.Errorf(api.Unauthorized, "no access token: set %s to that of the sandbox", wire.AccessToken)
	}
	c.access = api.Access{ID: id, Token: t}
	c.box, err = c.Open(c.access)
	return err
}

func (c *call) sandboxID() (string, error) {
	id := c.r.PathValue("id")
	return id, api.CheckID(api.SandboxPrefix, id)
}

func (c *call) snapshotID() (string, error) {
	id := c.r.PathValue("id")
	return id, api.CheckID(api.SnapshotPrefix, id)
}

// checkOnceKey checks the form of an idempotency key.
func checkOnceKey(key string) error {
	if len(key) > api.MaxKey {
		return api.Errorf(api.BadRequest, "%s: longer than %d bytes", wire.IdempotencyKey, api.MaxKey)
	}
	for _, b := range []byte(key) {
		if b < ' ' || b > '~' {
			return api.Errorf(api.BadRequest, "%s: not ASCII", wire.IdempotencyKey)
		}
	}
	return nil
}

// fingerprint tells requests apart.
func (c *call) fingerprint() [sha256.Size]byte {
	h := sha256.New()
	fmt.Fprintf(h, "%s %s\n", c.r.Method, c.r.URL.Path)
	h.Write(c.body)
	return [sha256.Size]byte(h.Sum(nil))
}
