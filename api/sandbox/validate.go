package sandbox

import (
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/template"
	"github.com/forkvm/forkvm/initrd/rootfs/ext4"
)

// Nothing that is out of range is made fit: it is refused, and the message names
// the field.

func bad(field, format string, args ...any) error {
	return api.Errorf(api.BadRequest, field+": "+format, args...)
}

func checkCreate(r *api.CreateRequest) error {
	switch {
	case r.Template != "" && r.FromSnapshot != "":
		return bad("from_snapshot", "a sandbox is made from a template or from a snapshot, not from both")
	case r.FromSnapshot == "":
		if r.Template == "" {
			r.Template = "base"
		}
		if template.CheckName(r.Template) != nil {
			return bad("template", "%.80q cannot be the name of one", r.Template)
		}
	}
	return checkSettings(&r.Settings)
}

func checkFork(r *api.ForkRequest) error {
	if r.Count == 0 {
		r.Count = 1
	}
	if r.Count < 1 || r.Count > api.MaxForks {
		return bad("count", "%d is not between 1 and %d", r.Count, api.MaxForks)
	}
	return checkSettings(&r.Settings)
}

func (e *Engine) checkBuild(r *api.BuildRequest) error {
	switch {
	case template.CheckName(r.Name) != nil:
		return bad("name", "%.80q cannot be that of a template", r.Name)
	case r.File == "" && !template.Builtin(r.Name):
		return bad("file", "there is none, and %s is not built in", r.Name)
	case len(r.File) > api.MaxTemplateFile:
		return bad("file", "longer than %d bytes", api.MaxTemplateFile)
	case len(r.Args) > api.MaxBuildArgs:
		return bad("args", "%d are more than %d", len(r.Args), api.MaxBuildArgs)
	case r.VCPUs < 0:
		return bad("vcpus", "%d of them", r.VCPUs)
	case r.MemoryBytes < 0 || r.MemoryBytes > e.limits.Memory:
		return bad("memory_bytes", "%d is not between 0 and %d", r.MemoryBytes, e.limits.Memory)
	case r.DiskBytes < 0 || r.DiskBytes > ext4.MaxSize:
		return bad("disk_bytes", "%d is not between 0 and %d", r.DiskBytes, int64(ext4.MaxSize))
	}
	return nil
}

func checkSettings(s *api.Settings) error {
	for _, err := range []error{
		checkName("name", s.Name), checkMetadata(s.Metadata), checkEnv(s.EnvVars),
		checkTimeouts(s.TimeoutSeconds, s.OnTimeout, s.AutoDeleteSeconds),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

func checkTimeouts(timeout api.Opt[int64], on api.OnTimeout, autoDelete api.Opt[int64]) error {
	if v := timeout.Value(); v != nil && (*v < 1 || *v > api.MaxTimeout) {
		return bad("timeout_seconds", "%d is not between 1 and %d", *v, api.MaxTimeout)
	}
	if v := autoDelete.Value(); v != nil && (*v < 0 || *v > api.MaxAutoDelete) {
		return bad("auto_delete_seconds", "%d is not between 0 and %d", *v, api.MaxAutoDelete)
	}
	if on != "" && on != api.TimeoutDestroys && on != api.TimeoutPauses {
		return bad("on_timeout", "%.40q is neither destroy nor pause", string(on))
	}
	return nil
}

func checkSnapshot(r *api.SnapshotRequest) error {
	if err := checkName("name", r.Name); err != nil {
		return err
	}
	return checkMetadata(r.Metadata)
}

func checkPatch(p *api.Patch) error {
	if p.Name == nil && p.Metadata == nil && p.OnTimeout == "" && !p.TimeoutSeconds.Given() && !p.AutoDeleteSeconds.Given() {
		return api.Errorf(api.BadRequest, "there is nothing to change")
	}
	if p.Name != nil {
		if err := checkName("name", *p.Name); err != nil {
			return err
		}
	}
	if err := checkMetadata(p.Metadata); err != nil {
		return err
	}
	return checkTimeouts(p.TimeoutSeconds, p.OnTimeout, p.AutoDeleteSeconds)
}

func checkName(field, name string) error {
	switch {
	case utf8.RuneCountInString(name) > api.MaxName:
		return bad(field, "%d characters are more than %d", utf8.RuneCountInString(name), api.MaxName)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return bad(field, "%.80q has characters that cannot be printed", name)
	}
	return nil
}

func checkMetadata(m map[string]string) error {
	if len(m) > api.MaxMetadata {
		return bad("metadata", "%d entries are more than %d", len(m), api.MaxMetadata)
	}
	all := 0
	for k, v := range m {
		all += len(k) + len(v)
		switch {
		case k == "":
			return bad("metadata", "a key is empty")
		case !utf8.ValidString(k) || !utf8.ValidString(v):
			return bad("metadata", "the entry %.40q is not UTF-8", k)
		case all > api.MaxMetaBytes:
			return bad("metadata", "all entries together have more than %d bytes", api.MaxMetaBytes)
		}
	}
	return nil
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func checkEnv(m map[string]string) error {
	if len(m) > api.MaxEnvVars {
		return bad("env_vars", "%d variables are more than %d", len(m), api.MaxEnvVars)
	}
	all := 0
	for k, v := range m {
		all += len(k) + len(v) + 2 // "=", and the NUL at its end
		switch {
		case !envName.MatchString(k):
			return bad("env_vars", "%.40q cannot be a variable's name", k)
		case strings.ContainsRune(v, 0):
			return bad("env_vars", "the value of %.40q has a NUL", k)
		case len(k)+len(v) > api.MaxMapEntry:
			return bad("env_vars", "%.40q has more than %d bytes", k, api.MaxMapEntry)
		case all > api.MaxEnvBytes:
			return bad("env_vars", "all variables together have more than %d bytes", api.MaxEnvBytes)
		}
	}
	return nil
}

var allStates = []api.State{api.Creating, api.Running, api.Pausing, api.Paused, api.Resuming, api.Failed, api.Destroying}

func checkStates(field string, states []api.State) error {
	for _, s := range states {
		if !slices.Contains(allStates, s) {
			return bad(field, "%.40q is no state", string(s))
		}
	}
	return nil
}

func checkWait(r *api.WaitRequest) error {
	if len(r.States) == 0 {
		return bad("state", "there is none to wait for")
	}
	if r.Timeout < 0 || r.Timeout > api.MaxWait*time.Second {
		return bad("timeout", "%v is not between 0 and %d s", r.Timeout, api.MaxWait)
	}
	return checkStates("state", r.States)
}

// checkPage returns the id that all of the page come after, in order, and how
// many they may be. The cursor is the last id of the page before, which need not
// be there any more.
func checkPage(p api.Page, prefix string) (before string, limit int, err error) {
	if p.Limit < 0 || p.Limit > api.MaxPage {
		return "", 0, bad("limit", "%d is not between 1 and %d", p.Limit, api.MaxPage)
	}
	if p.Limit == 0 {
		p.Limit = api.MaxPage
	}
	if p.Cursor == "" {
		return "", p.Limit, nil
	}
	if api.CheckID(prefix, p.Cursor) != nil {
		return "", 0, bad("cursor", "%.80q is none of ours", p.Cursor)
	}
	return p.Cursor, p.Limit, nil
}
