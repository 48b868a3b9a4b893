package api

import "time"

// Limits of a [BuildRequest].
const (
	MaxTemplateFile = 1 << 20 // bytes of the file
	MaxBuildArgs    = 256     // entries
)

// Template is what there is to say of a template.
type Template struct {
	Name        string    `json:"name"`
	BuiltIn     bool      `json:"built_in"`
	Ready       bool      `json:"ready"` // false: it will be built at its first use
	CreatedAt   time.Time `json:"created_at,omitzero"`
	From        string    `json:"from,omitempty"` // what it was made from
	VCPUs       int       `json:"vcpus,omitempty"`
	MemoryBytes int64     `json:"memory_bytes,omitempty"`
	DiskBytes   int64     `json:"disk_bytes,omitempty"`
	StoredBytes int64     `json:"stored_bytes,omitempty"`
	Kernel      string    `json:"kernel,omitempty"` // the release of the guest's
	// BuildSeconds is how long its build took, of what was not cached.
	BuildSeconds float64 `json:"build_seconds,omitempty"`

	// File is the file that says how it was made. Env (NAME=VALUE), Cwd and User
	// are what commands begin with, and Cmd is the command that was captured
	// running, or else what the container image has for one. Lists leave these
	// out.
	File string   `json:"file,omitempty"`
	Env  []string `json:"env,omitempty"`
	Cwd  string   `json:"cwd,omitempty"`
	User string   `json:"user,omitempty"`
	Cmd  []string `json:"cmd,omitempty"`
}

// TemplateList is all templates, in the order of their names.
type TemplateList struct {
	Templates []Template `json:"templates"`
}

// BuildRequest says what a template is to be. Zero values of what its machine
// is like are the server's defaults, or as in the template that it is made
// from, in which case nothing else is possible.
type BuildRequest struct {
	// Name is up to 63 of a-z, 0-9 and . _ -, of which the first is no sign. A
	// template that has it is replaced when the build has succeeded; what was
	// made of it stays.
	Name string `json:"name"`
	// File says how, in a subset of a Containerfile, in up to [MaxTemplateFile]
	// bytes. FROM names a built-in base, another template, an image of a
	// registry, or a path in the context. Empty: the template is a built-in one.
	File string            `json:"file,omitempty"`
	Args map[string]string `json:"args,omitempty"` // for ARG

	VCPUs       int   `json:"vcpus,omitempty"`
	MemoryBytes int64 `json:"memory_bytes,omitempty"`
	DiskBytes   int64 `json:"disk_bytes,omitempty"`

	NoCache bool `json:"no_cache,omitempty"` // run all steps again
	Pull    bool `json:"pull,omitempty"`     // get what FROM names again
}
