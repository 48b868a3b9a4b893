package applet

import (
	"github.com/u-root/u-root/pkg/core/base64"
	"github.com/u-root/u-root/pkg/core/cat"
	"github.com/u-root/u-root/pkg/core/chmod"
	"github.com/u-root/u-root/pkg/core/cp"
	"github.com/u-root/u-root/pkg/core/find"
	"github.com/u-root/u-root/pkg/core/ls"
	"github.com/u-root/u-root/pkg/core/mkdir"
	"github.com/u-root/u-root/pkg/core/mktemp"
	"github.com/u-root/u-root/pkg/core/mv"
	"github.com/u-root/u-root/pkg/core/rm"
	"github.com/u-root/u-root/pkg/core/shasum"
	"github.com/u-root/u-root/pkg/core/tar"
	"github.com/u-root/u-root/pkg/core/touch"
	"github.com/u-root/u-root/pkg/core/xargs"
)

// table is the commands in order of name. All it holds are plain functions: so
// it is data of the program file, and nothing is set up when a guest starts.
var table = [...]entry{
	{name: "[", run: bracket},
	{name: "base64", core: base64.New},
	{name: "basename", run: baseName},
	{name: "cat", core: cat.New},
	{name: "chmod", core: chmod.New},
	{name: "chown", run: chown},
	{name: "cp", core: cp.New},
	{name: "cut", run: cut},
	{name: "date", run: date},
	{name: "dd", run: dd},
	{name: "df", run: df},
	{name: "dirname", run: dirName},
	{name: "dmesg", run: dmesg},
	{name: "du", run: du},
	{name: "echo", run: echo},
	{name: "env", run: env},
	{name: "false", run: falseCmd},
	{name: "find", core: find.New},
	{name: "free", run: free},
	{name: "grep", run: grep},
	{name: "gunzip", run: gunzip},
	{name: "gzip", run: gzipCmd},
	{name: "head", run: head},
	{name: "hostname", run: hostname},
	{name: "id", run: id},
	{name: "kill", run: kill},
	{name: "ln", run: ln},
	{name: "ls", core: ls.New},
	{name: "md5sum", run: md5sum},
	{name: "mkdir", core: mkdir.New},
	{name: "mktemp", core: mktemp.New, alone: true},
	{name: "mount", run: mount},
	{name: "mv", core: mv.New},
	{name: "nproc", run: nproc},
	{name: "poweroff", run: powerOff},
	{name: "printenv", run: printenv},
	{name: "printf", run: printfCmd},
	{name: "ps", run: ps},
	{name: "pwd", run: pwd},
	{name: "readlink", run: readlink},
	{name: "realpath", run: realpath},
	{name: "reboot", run: reboot},
	{name: "rm", core: rm.New},
	{name: "rmdir", run: rmdir},
	{name: "seq", run: seq},
	{name: "setsid", run: setsid},
	{name: "sh", run: sh},
	{name: "sha256sum", run: sha256sum},
	{name: "shasum", core: shasum.New},
	{name: "sleep", run: sleep, alone: true},
	{name: "sort", run: sortCmd},
	{name: "stty", run: stty},
	{name: "sync", run: syncCmd},
	{name: "tail", run: tail},
	{name: "tar", core: tar.New},
	{name: "tee", run: tee},
	{name: "test", run: test},
	{name: "touch", core: touch.New},
	{name: "tr", run: tr},
	{name: "true", run: trueCmd},
	{name: "tty", run: tty},
	{name: "umount", run: umount},
	{name: "uname", run: uname},
	{name: "uniq", run: uniq},
	{name: "uptime", run: uptime},
	{name: "wc", run: wc},
	{name: "which", run: which},
	{name: "whoami", run: whoami},
	{name: "xargs", core: xargs.New, alone: true},
	{name: "yes", run: yes},
	{name: "zcat", run: zcat},
}
