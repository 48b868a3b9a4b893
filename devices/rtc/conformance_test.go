package rtc_test

import (
	"testing"

	"github.com/forkvm/forkvm/devices/devtest"
	"github.com/forkvm/forkvm/devices/rtc"
)

func TestConformance(t *testing.T) {
	devtest.TestBus(t, devtest.Bus[*rtc.Device, rtc.State]{
		New:     func(testing.TB) *rtc.Device { return rtc.New(rtc.Config{}, rtc.Env{}) },
		Save:    (*rtc.Device).Save,
		Restore: func(_ testing.TB, s rtc.State) *rtc.Device { return rtc.Restore(rtc.Config{}, rtc.Env{}, s) },
		Size:    rtc.Ports,
	})
}
