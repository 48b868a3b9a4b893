package promises

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"strings"

	"github.com/forkvm/forkvm/api"
)

// deleteLater deletes a template when the test ends, after the sandboxes that are
// made from now on.
func (c *C) deleteLater(name string) {
	c.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := c.DeleteTemplate(ctx, name); err != nil {
			c.Errorf("delete template: %v", err)
		}
	})
}

// build builds a template, of a context with one file.
func (c *C) build(name, file string) *api.Template {
	c.Helper()
	var log bytes.Buffer
	t, err := c.BuildTemplate(c.ctx(), api.BuildRequest{Name: name, File: file}, oneFile(c, "greeting", "hello"), &log)
	if err != nil {
		c.Fatalf("build: %v\n%s", err, &log)
	}
	return t
}

// oneFile is an archive of one.
func oneFile(c *C, name, text string) io.Reader {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(text)), Mode: 0o644})
	if err == nil {
		_, err = io.WriteString(w, text)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		c.Fatal(err)
	}
	return &b
}

// sh is a step for templates that have no /bin/sh.
func sh(script string) string { return `RUN ["sh", "-c", "` + script + `"]` }

// builtTemplate builds one with a start command, and starts nothing.
func builtTemplate(c *C) {
	const file = `
COPY greeting /srv/greeting
CMD ["sh", "-c", "i=0; while true; do i=$((i+1)); echo $i >/tmp/count.new; mv /tmp/count.new /tmp/count; sleep 0.05; done"]
HEALTHCHECK CMD ["sh", "-c", "test -e /tmp/count && echo is ready"]
`
	c.deleteLater("x18-built")
	t := c.build("x18-built", "FROM "+c.target.Template+file)
	is(c, "name", t.Name, "x18-built")
	is(c, "made from", t.From, c.target.Template)
	s := c.create(func(r *api.CreateRequest) { r.Template = t.Name })
	is(c, "template", s.Template, t.Name)
	is(c, "a file of the context", c.sh(s, "cat /srv/greeting"), "hello")
	c.goesOn(s)
	log, err := c.TemplateLog(c.ctx(), t.Name)
	if err != nil {
		c.Fatal(err)
	}
	defer log.Close()
	text, err := io.ReadAll(log)
	if err != nil || !strings.Contains(string(text), "is ready\n") {
		c.Errorf("log %q, %v", text, err)
	}
	// It is there already.
	again := c.build(t.Name, "FROM "+c.target.Template+file)
	is(c, "built again", again.CreatedAt, t.CreatedAt)

	// One that fails leaves it as it was.
	_, err = c.BuildTemplate(c.ctx(), api.BuildRequest{Name: t.Name, File: "FROM " + c.target.Template + "\n" + sh("exit 7")}, nil, nil)
	c.code(err, api.BadRequest, "exit code 7")
	_, err = c.BuildTemplate(c.ctx(), api.BuildRequest{Name: t.Name, File: "FROM /etc"}, nil, nil)
	c.code(err, api.BadRequest, "/etc")
	now, err := c.Template(c.ctx(), t.Name)
	if err != nil || !now.CreatedAt.Equal(t.CreatedAt) {
		c.Errorf("after a build that failed: %+v, %v", now, err)
	}
}

// templateInUse has a sandbox and then a snapshot keep a template.
func templateInUse(c *C) {
	c.deleteLater("x18-used")
	t := c.build("x18-used", "FROM "+c.target.Template+"\n"+sh("echo one >/which"))
	s := c.create(func(r *api.CreateRequest) { r.Template = t.Name })
	c.code(c.DeleteTemplate(c.ctx(), t.Name), api.Conflict, "1 sandbox ")
	c.build(t.Name, "FROM "+c.target.Template+"\n"+sh("echo two >/which"))
	is(c, "a sandbox of the template before", c.sh(s, "cat /which"), "one")
	c.code(c.DeleteTemplate(c.ctx(), t.Name), api.Conflict, "1 sandbox ")
	snap, err := c.CreateSnapshot(c.ctx(), s.ID, api.SnapshotRequest{})
	if err != nil {
		c.Fatal(err)
	}
	if err := c.Destroy(c.ctx(), s.ID); err != nil {
		c.Fatal(err)
	}
	c.code(c.DeleteTemplate(c.ctx(), t.Name), api.Conflict, "1 snapshot ")
	if err := c.DeleteSnapshot(c.ctx(), snap.ID); err != nil {
		c.Fatal(err)
	}
	for range 2 {
		if err := c.DeleteTemplate(c.ctx(), t.Name); err != nil {
			c.Errorf("without references: %v", err)
		}
	}
	_, err = c.Create(c.ctx(), api.CreateRequest{Template: t.Name})
	c.code(err, api.NotFound, t.Name)
}
