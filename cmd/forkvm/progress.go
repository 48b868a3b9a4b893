package main

import (
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
)

// showProgress shows on standard error, if that is a terminal, how far
// something has come that takes long. report may be nil; end takes the bar
// away.
func showProgress(what string) (report func(done, total int64), end func()) {
	if !isTerminal(os.Stderr) {
		return nil, func() {}
	}
	bar := progressbar.NewOptions64(1,
		progressbar.OptionSetWriter(os.Stderr),
		progressbar.OptionSetDescription(what),
		progressbar.OptionFullWidth(),
		progressbar.OptionShowBytes(true),
		progressbar.OptionUseIECUnits(true),
		progressbar.OptionThrottle(50*time.Millisecond),
		progressbar.OptionSetRenderBlankState(true),
	)
	report = func(done, total int64) {
		if total > 0 { // the bar takes no other
			bar.ChangeMax64(total)
			_ = bar.Set64(min(done, total)) // it fails if nobody sees it
		}
	}
	return report, func() { _ = bar.Clear() }
}
