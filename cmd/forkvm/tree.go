package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/api"
)

// treeNode is a template, a sandbox or a snapshot, with what was made from it.
type treeNode struct {
	Kind     string      `json:"kind"` // template, sandbox or snapshot
	ID       string      `json:"id"`   // of a template its name
	Name     string      `json:"name,omitempty"`
	State    string      `json:"state,omitempty"`
	Gone     bool        `json:"gone"` // not there any more
	Children []*treeNode `json:"children"`
}

func newTree() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tree",
		Short: "Show which sandboxes and snapshots were made from which",
		Long: `Show which sandboxes and snapshots were made from which: forks below their parents,
snapshots below the sandbox that they are of, and what was created from a snapshot below
it. Of what is not there any more the id is shown.

With --json it prints a list of objects with kind, id, name, state, gone and children.`,
		Args: cobra.NoArgs,
	}
	asJSON := jsonFlag(cmd)
	return onServer(cmd, func(cmd *cobra.Command, s api.Service, _ []string) error {
		boxes, err := allBoxes(cmd.Context(), s, api.SandboxQuery{})
		if err != nil {
			return err
		}
		snaps, err := allSnaps(cmd.Context(), s, api.SnapshotQuery{})
		if err != nil {
			return err
		}
		roots := lineage(boxes, snaps)
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), roots)
		}
		for _, r := range roots {
			printTree(cmd.OutOrStdout(), r, "", "")
		}
		return nil
	})
}

// forest grows from templates.
type forest struct{ nodes, roots map[string]*treeNode }

// lineage is what was made from what, the oldest first. Templates are the roots.
func lineage(boxes []api.Sandbox, snaps []api.Snapshot) []*treeNode {
	f := forest{map[string]*treeNode{}, map[string]*treeNode{}}
	for _, b := range boxes {
		f.nodes[b.ID] = &treeNode{Kind: "sandbox", ID: b.ID, Name: b.Name, State: string(b.State), Children: []*treeNode{}}
	}
	for _, s := range snaps {
		f.nodes[s.ID] = &treeNode{Kind: "snapshot", ID: s.ID, Name: s.Name, Children: []*treeNode{}}
	}
	for _, b := range boxes {
		switch {
		case b.ParentSandboxID != nil:
			f.add(b.ID, "sandbox", *b.ParentSandboxID, b.Template)
		case b.SourceSnapshotID != nil:
			f.add(b.ID, "snapshot", *b.SourceSnapshotID, b.Template)
		default:
			f.addTo(f.root(b.Template), b.ID)
		}
	}
	for _, s := range snaps {
		f.add(s.ID, "sandbox", s.SandboxID, s.Template)
	}
	for _, n := range f.nodes {
		n.sort()
	}
	all := []*treeNode{}
	for _, name := range slices.Sorted(maps.Keys(f.roots)) {
		f.roots[name].sort()
		all = append(all, f.roots[name])
	}
	return all
}

// sort puts children in the order in which they were made, by which ids sort.
func (n *treeNode) sort() {
	slices.SortFunc(n.Children, func(a, b *treeNode) int { return strings.Compare(a.made(), b.made()) })
}

// made is when it was made, to compare.
func (n *treeNode) made() string {
	_, time, _ := strings.Cut(n.ID, "_")
	return time
}

func (f forest) root(template string) *treeNode {
	if f.roots[template] == nil {
		f.roots[template] = &treeNode{Kind: "template", ID: template, Children: []*treeNode{}}
	}
	return f.roots[template]
}

func (f forest) addTo(parent *treeNode, id string) {
	parent.Children = append(parent.Children, f.nodes[id])
}

// add puts a node below its parent, and that below the template if it is gone:
// what it came from itself nobody knows any more.
func (f forest) add(id, kind, parent, template string) {
	if f.nodes[parent] == nil {
		f.nodes[parent] = &treeNode{Kind: kind, ID: parent, Gone: true, Children: []*treeNode{}}
		f.addTo(f.root(template), parent)
	}
	f.addTo(f.nodes[parent], id)
}

func printTree(w io.Writer, n *treeNode, first, rest string) {
	fmt.Fprintln(w, first+n.label())
	for i, c := range n.Children {
		branch, below := "├─ ", "│  "
		if i == len(n.Children)-1 {
			branch, below = "└─ ", "   "
		}
		printTree(w, c, rest+branch, rest+below)
	}
}

func (n *treeNode) label() string {
	words := []string{n.Kind, shortID(n.ID)}
	if n.Kind == "template" {
		words[1] = n.ID
	}
	if n.Name != "" {
		words = append(words, plain(n.Name))
	}
	if n.State != "" {
		words = append(words, "("+n.State+")")
	}
	if n.Gone {
		words = append(words, "(gone)")
	}
	return strings.Join(words, " ")
}
