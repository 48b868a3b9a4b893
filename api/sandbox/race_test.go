//go:build race

package sandbox

// raceDetector tells that the test runs with the race detector.
const raceDetector = true
