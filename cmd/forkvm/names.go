package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/api"
)

// kind is what records are of.
type kind struct {
	word    string
	list    string                 // the command that lists them
	shorten func(id string) string // as people read it
}

var (
	boxKind   = &kind{"sandbox", "ls", shortID}
	snapKind  = &kind{"snapshot", "snapshot ls", shortID}
	storeKind = &kind{"snapshot", "store ls", short}
)

// record is what names a sandbox or snapshot.
type record struct {
	kind     *kind
	id, name string
	about    string // a few words that tell it from others
}

func boxRecord(b api.Sandbox) record {
	return record{boxKind, b.ID, b.Name, fmt.Sprintf("%s (%s, %s)", b.Name, b.State, humanize.Time(b.CreatedAt))}
}

func snapRecord(s api.Snapshot) record {
	return record{snapKind, s.ID, s.Name, fmt.Sprintf("%s (of %s, %s)", s.Name, shortID(s.SandboxID), humanize.Time(s.CreatedAt))}
}

// shortID is an id of a server as people read it: the time, and enough of what is
// random to tell those of one instant apart.
func shortID(id string) string { return id[:min(len(id), 20)] }

// pick finds the id that a word means: an id, a name, or the beginning of an id.
func pick(k *kind, all []record, word string) (string, error) {
	if word == "" {
		return "", usageError("empty name of a %s", k.word)
	}
	var named, begun []record
	for _, r := range all {
		switch {
		case r.id == word:
			return r.id, nil
		case r.name == word:
			named = append(named, r)
		case strings.HasPrefix(r.id, word):
			begun = append(begun, r)
		}
	}
	found := named
	if len(found) == 0 {
		found = begun
	}
	switch len(found) {
	case 0:
		return "", api.Errorf(api.NotFound, "no such %s: %q (try: forkvm %s)", k.word, word, k.list)
	case 1:
		return found[0].id, nil
	}
	return "", fmt.Errorf("%q names more than one %s%s", word, k.word, candidates(found))
}

// candidates lists records on lines of their own, but not without end.
func candidates(all []record) string {
	const most = 10
	var b strings.Builder
	for i, r := range all {
		if i == most {
			fmt.Fprintf(&b, "\n  and %d more", len(all)-most)
			break
		}
		fmt.Fprintf(&b, "\n  %s  %s", r.id, strings.TrimSpace(r.about))
	}
	return b.String() + "\n"
}

// allBoxes lists sandboxes, newest first, page by page.
func allBoxes(ctx context.Context, s api.Service, q api.SandboxQuery) ([]api.Sandbox, error) {
	all := []api.Sandbox{} // a list of none is [] in JSON
	for {
		page, err := s.List(ctx, q)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Sandboxes...)
		if page.NextCursor == "" {
			return all, nil
		}
		if q.Cursor, err = next(q.Cursor, page.NextCursor); err != nil {
			return nil, err
		}
	}
}

// allSnaps does the same for snapshots.
func allSnaps(ctx context.Context, s api.Service, q api.SnapshotQuery) ([]api.Snapshot, error) {
	all := []api.Snapshot{}
	for {
		page, err := s.Snapshots(ctx, q)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Snapshots...)
		if page.NextCursor == "" {
			return all, nil
		}
		if q.Cursor, err = next(q.Cursor, page.NextCursor); err != nil {
			return nil, err
		}
	}
}

// next is the cursor of the next page, which is none that was read.
func next(cursor, after string) (string, error) {
	if after == cursor {
		return "", api.Errorf(api.InternalError, "the server repeats a page of its list")
	}
	return after, nil
}

// boxIDs finds the sandboxes of these names, each once, or fails.
func boxIDs(ctx context.Context, s api.Service, words ...string) ([]string, error) {
	return ids(boxKind, api.SandboxPrefix, words, func() (all []record, err error) {
		boxes, err := allBoxes(ctx, s, api.SandboxQuery{})
		for _, b := range boxes {
			all = append(all, boxRecord(b))
		}
		return all, err
	})
}

// snapIDs does the same for snapshots.
func snapIDs(ctx context.Context, s api.Service, words ...string) ([]string, error) {
	return ids(snapKind, api.SnapshotPrefix, words, func() (all []record, err error) {
		snaps, err := allSnaps(ctx, s, api.SnapshotQuery{})
		for _, n := range snaps {
			all = append(all, snapRecord(n))
		}
		return all, err
	})
}

// ids finds what words mean. Whole ids need no list.
func ids(k *kind, prefix string, words []string, list func() ([]record, error)) ([]string, error) {
	var found []string
	var all []record
	listed := false
	seen := map[string]bool{}
	for _, word := range words {
		id := word
		if api.CheckID(prefix, word) != nil {
			var err error
			if !listed {
				if all, err = list(); err != nil {
					return nil, err
				}
				listed = true
			}
			if id, err = pick(k, all, word); err != nil {
				return nil, err
			}
		}
		if !seen[id] {
			seen[id] = true
			found = append(found, id)
		}
	}
	return found, nil
}

func boxID(ctx context.Context, s api.Service, word string) (string, error) {
	found, err := boxIDs(ctx, s, word)
	if err != nil {
		return "", err
	}
	return found[0], nil
}

func snapID(ctx context.Context, s api.Service, word string) (string, error) {
	found, err := snapIDs(ctx, s, word)
	if err != nil {
		return "", err
	}
	return found[0], nil
}

// findBox returns the whole record of a sandbox, which has its token.
func findBox(ctx context.Context, s api.Service, word string) (*api.Sandbox, error) {
	id, err := boxID(ctx, s, word)
	if err != nil {
		return nil, err
	}
	return s.Get(ctx, id)
}

// completeWithin is how long a shell waits for names.
const completeWithin = 2 * time.Second

// completeBoxes completes the first max arguments as sandboxes.
func completeBoxes(max int) cobra.CompletionFunc {
	return completeRecords(max, func(ctx context.Context, s api.Service) (all []record) {
		boxes, _ := allBoxes(ctx, s, api.SandboxQuery{}) // there is nobody to tell of an error
		for _, b := range boxes {
			all = append(all, boxRecord(b))
		}
		return all
	})
}

// completeSnaps completes the first max arguments as snapshots of the server.
func completeSnaps(max int) cobra.CompletionFunc {
	return completeRecords(max, func(ctx context.Context, s api.Service) (all []record) {
		snaps, _ := allSnaps(ctx, s, api.SnapshotQuery{})
		for _, n := range snaps {
			all = append(all, snapRecord(n))
		}
		return all
	})
}

// completeServed completes names of templates of the server.
func completeServed(cmd *cobra.Command, _ []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
	whileCompleting(cmd, func(ctx context.Context, s api.Service) {
		if l, err := s.Templates(ctx); err == nil {
			for _, t := range l.Templates {
				names = append(names, t.Name)
			}
		}
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}

func completeRecords(max int, list func(context.Context, api.Service) []record) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (words []cobra.Completion, _ cobra.ShellCompDirective) {
		if len(args) < max {
			whileCompleting(cmd, func(ctx context.Context, s api.Service) { words = completions(list(ctx, s)) })
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

// whileCompleting asks the server, if it runs, for what a shell is waiting for.
func whileCompleting(cmd *cobra.Command, ask func(context.Context, api.Service)) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
	defer cancel()
	s, done, err := connect(ctx, cmd.Flag("server").Value.String(), false)
	if err != nil {
		return
	}
	defer done()
	ask(ctx, s)
}

// completions are ids, and names that only one has.
func completions(all []record) (words []cobra.Completion) {
	for _, r := range all {
		if id, err := pick(r.kind, all, r.name); err == nil && id == r.id {
			words = append(words, cobra.CompletionWithDesc(r.name, r.kind.word+" "+r.kind.shorten(r.id)))
		}
		words = append(words, cobra.CompletionWithDesc(r.id, strings.TrimSpace(r.about)))
	}
	return words
}
