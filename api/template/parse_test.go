package template

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// planOf is what a file says for an empty base.
func planOf(t *testing.T, src string, args map[string]string) plan {
	t.Helper()
	f, err := Parse([]byte(src))
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.plan(Config{}, args)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func sh(line string) []string { return []string{"/bin/sh", "-c", line} }

func TestPlan(t *testing.T) {
	got := planOf(t, `# syntax=anything
from python

ARG VERSION=1.0
ENV A=1 B="two words" C='$A' D=${VERSION}
ENV A=2 E=$A
ENV LEGACY all of it
WORKDIR /srv/app
WORKDIR sub
RUN pip install \
    # a comment within
    "pkg==$VERSION" && \

    true
USER nobody:nogroup
COPY --chown=app:${G:-staff} a.txt b/*.py "with space" dest/
COPY ["x y", "/y"]
RUN ["echo", "$A"]
CMD serve --port 80
HEALTHCHECK CMD ["probe"]
`, map[string]string{"VERSION": "2.5"})
	env := []string{"A=2", "B=two words", "C=$A", "D=2.5", "E=1", "LEGACY=all of it"}
	inForce := append([]string{"VERSION=2.5"}, env...)
	want := plan{
		config: Config{Env: env, Workdir: "/srv/app/sub", User: "nobody:nogroup", Cmd: sh("serve --port 80")},
		start:  sh("serve --port 80"),
		check:  []string{"probe"},
		steps: []step{
			{kind: stepWorkdir, line: 8, text: "WORKDIR /srv/app", dest: "/srv/app", env: inForce, dir: "/srv/app"},
			{kind: stepWorkdir, line: 9, text: "WORKDIR sub", dest: "/srv/app/sub", env: inForce, dir: "/srv/app/sub"},
			{kind: stepRun, line: 10, text: `RUN pip install     "pkg==$VERSION" &&     true`,
				argv: sh(`pip install     "pkg==$VERSION" &&     true`), env: inForce, dir: "/srv/app/sub"},
			{kind: stepCopy, line: 16, text: `COPY --chown=app:${G:-staff} a.txt b/*.py "with space" dest/`,
				sources: []string{"a.txt", "b/*.py", "with space"}, dest: "/srv/app/sub/dest", intoDir: true, chown: "app:staff",
				env: inForce, dir: "/srv/app/sub", user: "nobody:nogroup"},
			{kind: stepCopy, line: 17, text: `COPY ["x y", "/y"]`, sources: []string{"x y"}, dest: "/y",
				env: inForce, dir: "/srv/app/sub", user: "nobody:nogroup"},
			{kind: stepRun, line: 18, text: `RUN ["echo", "$A"]`, argv: []string{"echo", "$A"},
				env: inForce, dir: "/srv/app/sub", user: "nobody:nogroup"},
		},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(plan{}, step{})); diff != "" {
		t.Error(diff)
	}
}

func TestPlanBeginsWithTheConfigOfTheBase(t *testing.T) {
	f, err := Parse([]byte("FROM x\nWORKDIR sub\nENV PATH=/opt/bin:$PATH\n"))
	if err != nil {
		t.Fatal(err)
	}
	base := Config{Env: []string{"PATH=/bin", "K=v"}, Workdir: "/base", User: "u", Cmd: []string{"c"}}
	p, err := f.plan(base, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := Config{Env: []string{"PATH=/opt/bin:/bin", "K=v"}, Workdir: "/base/sub", User: "u", Cmd: []string{"c"}}
	if diff := cmp.Diff(want, p.config); diff != "" {
		t.Error(diff)
	}
	if p.start != nil {
		t.Errorf("starts %q, which the image has and not the file", p.start)
	}
	if base.Env[0] != "PATH=/bin" {
		t.Errorf("the base's environment became %q", base.Env)
	}
}

func TestFrom(t *testing.T) {
	for src, want := range map[string]string{
		"FROM base":                        "base",
		"FROM 'a b'":                       "a b",
		"ARG V=1\nFROM img:$V\nARG V=2":    "img:1",
		"ARG V=1\nARG GIVEN\nFROM $GIVEN":  "given",
		"\ufeff# hi\r\nFROM \\\r\n base\r": "base",
	} {
		f, err := Parse([]byte(src))
		if err != nil {
			t.Errorf("%q: %v", src, err)
			continue
		}
		if got, err := f.from(map[string]string{"GIVEN": "given"}); err != nil || got != want {
			t.Errorf("%q: from %q, %v; want %q", src, got, err, want)
		}
	}
}

func TestExpand(t *testing.T) {
	env := map[string]string{"A": "a", "EMPTY": "", "S": "x y"}
	lookup := func(n string) (string, bool) { v, ok := env[n]; return v, ok }
	for in, want := range map[string]string{
		`$A`: "a", `${A}b`: "ab", `$Ab`: "", `$`: "$", `$1`: "$1", `\$A`: "$A", `'$A'`: "$A", `"$A"`: "a",
		`${EMPTY:-d}`: "d", `${EMPTY-d}`: "", `${NO-d}`: "d", `${NO:-$A}`: "a", `${A:-${NO:-x}}`: "a", `${A:+yes}`: "yes",
		`${EMPTY:+yes}`: "", `${EMPTY+yes}`: "yes", `${NO+yes}`: "", `"a\n"`: `a\n`, `a\ b`: "a b", `"\""`: `"`, `'\'`: `\`,
		`${NO:-"}"}`: "}", `$S`: "x y", `end\`: `end\`, `é$A`: "éa",
	} {
		if got, err := expand(in, lookup); err != nil || got != want {
			t.Errorf("expand(%s): %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{`"`, `'`, `${A`, `${`, `${}`, `${A:?no}`, `${A#x}`, `${A:-x`, strings.Repeat("${NO:-", 20) + strings.Repeat("}", 20)} {
		if got, err := expand(in, lookup); err == nil {
			t.Errorf("expand(%s): %q", in, got)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for src, want := range map[string]string{
		"":                                       "no FROM",
		"# nothing\n":                            "no FROM",
		"RUN true":                               "line 1: RUN: FROM must come first",
		"FROM a\nFROM b":                         "line 2: FROM: a template has one stage only",
		"FROM a AS b":                            "line 1: FROM: stages with names",
		"FROM --platform=x a":                    `line 1: FROM: option "--platform=x" is not supported`,
		"FROM a b":                               "line 1: FROM: 2 words in place of one",
		"FROM a\n\n\nEXPOSE 80":                  `line 4: unknown instruction "EXPOSE"`,
		"FROM a\nENTRYPOINT x":                   `line 2: unknown instruction "ENTRYPOINT"`,
		"FROM a\nADD x y":                        `line 2: unknown instruction "ADD"`,
		"FROM a\nRUN":                            "line 2: RUN: nothing follows it",
		"FROM a\nRUN --mount=type=cache true":    `line 2: RUN: option "--mount=type=cache"`,
		"FROM a\nRUN <<EOF\ntrue\nEOF":           "line 2: RUN: here-documents are not supported",
		"FROM a\nRUN cat <<-'E' >x":              "line 2: RUN: here-documents are not supported",
		"FROM a\nCOPY <<E /x":                    "line 2: COPY: here-documents are not supported",
		"FROM a\nRUN []":                         "line 2: RUN: a list with no command",
		"FROM a\nCOPY x":                         "line 2: COPY: a source and a destination",
		"FROM a\nCOPY --from=b x y":              `line 2: COPY: option "--from=b" is not supported`,
		"FROM a\nCOPY https://x/y /":             `line 2: COPY: "https://x/y": only files can be copied`,
		"FROM a\nCOPY 'x y /":                    "line 2: COPY: a quote that is not closed",
		"FROM a\nENV A":                          `line 2: ENV: "A" has no value`,
		"FROM a\nENV A=1 B":                      `line 2: ENV: "B" is not NAME=VALUE`,
		"FROM a\nENV 1=2":                        `line 2: ENV: "1" is not a name`,
		"FROM a\nENV A=${B":                      "line 2: ENV: ${ that is not closed",
		"FROM a\nARG A B":                        "line 2: ARG: 2 words in place of one",
		"FROM a\nUSER a b":                       "line 2: USER: 2 words in place of one",
		"FROM a\nCMD a\nCMD b":                   "line 3: CMD: given twice",
		"FROM a\nHEALTHCHECK CMD x":              "HEALTHCHECK without a CMD",
		"FROM a\nHEALTHCHECK --interval=1s CMD":  `line 2: HEALTHCHECK: option "--interval=1s"`,
		"FROM a\nHEALTHCHECK x":                  "line 2: HEALTHCHECK: it is followed by CMD",
		"# escape=`\nFROM a":                     "line 1: lines can be continued with a backslash only",
		"FROM \xff":                              "not UTF-8",
		"FROM a\x00":                             "not UTF-8",
		strings.Repeat("#", MaxFile+1):           "longer than",
		strings.Repeat("RUN x\n", 1000):          "more than 250 instructions",
		"FROM a\nRUN \\\n\n# c\n x\nRUNX \\\n y": `line 6: unknown instruction "RUNX"`,
	} {
		_, err := Parse([]byte(src))
		var syntax *SyntaxError
		if !errors.As(err, &syntax) || !errors.Is(err, ErrSyntax) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", src, err, want)
		}
	}
}

func TestParseTakes(t *testing.T) {
	for _, src := range []string{
		"FROM a\nRUN echo $((1<<3)) <<<word",
		"FROM a\nHEALTHCHECK none",
		"FROM a\nRUN [ -f /x ] && true", // no JSON: a line for the shell
		"FROM a\nRUN true \\",
		"FROM a\n  # indented comment\n  run true",
	} {
		if _, err := Parse([]byte(src)); err != nil {
			t.Errorf("%q: %v", src, err)
		}
	}
}

func TestPlanRefuses(t *testing.T) {
	bomb := "FROM a\nENV A=" + strings.Repeat("x", 1000) + "\n"
	for range 40 {
		bomb += "ENV A=$A$A\n"
	}
	wide := "FROM a\n"
	for k := range 30 {
		wide += fmt.Sprintf("ENV V%d=%s\n", k, strings.Repeat("x", 20000))
	}
	for src, want := range map[string]string{
		"FROM a\nUSER $NO":         "line 2: USER: an empty name",
		"FROM a\nWORKDIR $NO":      "line 2: WORKDIR: an empty path",
		"FROM a\nCOPY $NO /":       "line 2: COPY: an empty path",
		"FROM a\nCOPY a b c":       "line 2: COPY: several sources need",
		"FROM a\nARG X\nUSER \"\"": "line 3: USER: an empty name",
		bomb:                       "a word of more than",
		wide:                       "bytes of environment",
	} {
		f, err := Parse([]byte(src))
		if err != nil {
			t.Errorf("%.60q: %v", src, err)
			continue
		}
		if _, err := f.plan(Config{}, nil); !errors.Is(err, ErrSyntax) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", src, err, want)
		}
	}
	f, err := Parse([]byte("FROM a\nARG KNOWN"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.plan(Config{}, map[string]string{"OTHER": "1"}); err == nil || !strings.Contains(err.Error(), `no ARG takes the build argument "OTHER"`) {
		t.Errorf("an argument that nothing declares: %v", err)
	}
}

func TestPathOfABaseThatHasNone(t *testing.T) {
	p := planOf(t, "FROM a\nENV PATH=/mine:$PATH", nil)
	if want := []string{"PATH=/mine:" + guestPath}; !cmp.Equal(p.config.Env, want) {
		t.Errorf("%q, want %q", p.config.Env, want)
	}
}

func TestArgHiddenByEnv(t *testing.T) {
	p := planOf(t, "FROM a\nARG A=arg\nRUN one\nENV A=env\nRUN two", nil)
	if got := p.steps[0].env; !cmp.Equal(got, []string{"A=arg"}) {
		t.Errorf("before ENV: %q", got)
	}
	if got := p.steps[1].env; !cmp.Equal(got, []string{"A=env"}) {
		t.Errorf("after ENV: %q", got)
	}
	if got := p.config.Env; !cmp.Equal(got, []string{"A=env"}) {
		t.Errorf("of forks: %q", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"FROM base\nRUN true", "FROM a\nENV A=${B:-\"c\"} D='e'\nCOPY --chown=a:b [\"x\", \"y\"]", "FROM a\nHEALTHCHECK CMD x\nCMD [\"y\"]",
		"ARG V=1\nFROM a:$V\nWORKDIR x/../y\nUSER 1:2\nENV K a b\\\n c", "FROM a\nCOPY a* \"b c\" d/\nARG Q=${V+${W-x}}",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, src string) {
		file, err := Parse([]byte(src))
		if err != nil {
			if !errors.Is(err, ErrSyntax) {
				t.Fatal(err)
			}
			return
		}
		p, err := file.plan(Config{}, nil)
		if err != nil {
			if !errors.Is(err, ErrSyntax) {
				t.Fatal(err)
			}
			return
		}
		for _, s := range p.steps {
			if s.kind != stepRun && !strings.HasPrefix(s.dest, "/") {
				t.Fatalf("%s goes to %q", s.kind, s.dest)
			}
			if s.kind == stepRun && len(s.argv) == 0 {
				t.Fatal("a command without words")
			}
		}
	})
}
