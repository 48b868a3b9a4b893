package promises

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Page is docs/semantics.md: which test is about which promise.
func Page() string {
	type row struct{ id, text, tests string }
	var rows []row
	for _, p := range All() {
		rows = append(rows, row{p.ID, p.Text, "`api/sandbox` `TestSemantics/*/" + p.ID + "_" + p.Name + "`"})
	}
	for _, p := range Elsewhere {
		rows = append(rows, row{p.ID, p.Text, "`" + p.Package + "` `" + strings.Join(p.Tests, "`, `") + "`"})
	}
	order := func(id string) int { return strings.IndexByte("USXD", id[0]) }
	slices.SortStableFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(order(a.id), order(b.id)), cmp.Compare(a.id, b.id))
	})
	var b strings.Builder
	b.WriteString(header)
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", r.id, r.text, r.tests)
	}
	return b.String()
}

const header = `# What a sandbox promises

Each promise has a number and a test named after it. Those of ` + "`TestSemantics`" + ` run twice with real machines: on the engine in
its own process, and over HTTP through the Go client. Numbers that are missing are about networks and secrets, which
sandboxes do not have yet.

U is about forks, snapshots and pauses of a running sandbox, S about snapshots and what is made from them, X about the
rest, and D decides what those leave open.

This page is generated: ` + "`go generate ./api/internal/promises`" + `.

| | promise | test |
|---|---|---|
`
