package promises

// Proof is a promise that tests elsewhere are about.
type Proof struct {
	ID, Text string
	Package  string // below the module's root
	Tests    []string
}

// Elsewhere are the promises whose tests need more than a service.
var Elsewhere = []Proof{
	{"S37", "A team has at most 100 snapshots.", "api/sandbox", []string{"TestS37_SnapshotsOfATeam"}},
	{"S38", "A sandbox has at most 20 snapshots.", "api/sandbox", []string{"TestS38_SnapshotsOfASandbox"}},
	{"S39", "At most 4 snapshots of a team are taken at once.", "api/sandbox", []string{"TestS39_SnapshotsInFlight"}},
	{"S40", "Deleting snapshots frees room at once.", "api/sandbox", []string{"TestS40_DeletionFreesRoomAtOnce"}},
	{"S41", "These limits are settings.", "api/sandbox", []string{"TestS41_LimitsAreSettings"}},
	{"X15", "Creating, forking and snapshotting take an idempotency key.", "api/server",
		[]string{"TestX15_IdempotencyKeys", "TestX15_WhatIsKept", "TestX15_RepeatsWaitForTheFirst", "TestX15_ClientSendsKeys"}},
	{"X18", "A template's start command is captured running, when its ready check succeeds.", "api/template",
		[]string{"TestX18_StartCommandIsCapturedWhenReady"}},
	{"X18", "The ready check is run every 2 s for up to 10 min.", "api/template", []string{"TestX18_ReadyCheckEvery2SecondsFor10Minutes"}},
	{"X18", "Sandboxes and snapshots of all teams keep their template.", "api/sandbox",
		[]string{"TestX18_ReferencedTemplate", "TestX18_ReferencesOutliveACrash"}},
	{"X18", "Administrators build and delete templates.", "api/server", []string{"TestX18_AdministratorsBuildAndDelete"}},
	{"D03", "A snapshot that is being taken counts against every limit.", "api/sandbox", []string{"TestD03_OneBeingTakenCounts"}},
	{"D08", "Destroying a sandbox wins over its snapshot, which leaves nothing; a capture that fails leaves its source running.", "api/sandbox",
		[]string{"TestD08_DestroyDuringSnapshot", "TestD08_FailureLeavesTheSource"}},
	{"D10", "Errors have a stable code, a message and a status.", "api/server", []string{"TestD10_EveryErrorCode"}},
	{"D10", "Each code that is documented is met by some request.", "api/sandbox", []string{"TestD10_EveryCodeIsProvoked"}},
	{"D11", "Account keys and sandbox tokens open what is theirs.", "api/server", []string{"TestD11_WhoMayDoWhat"}},
	{"D12", "Paths, methods and statuses are those of openapi.yaml.", "api/server", []string{"TestD12_EveryRouteIsDescribed"}},
	{"D15", "After a crash what was paused and what was a snapshot is there again, what ran has failed, and nothing is left over.", "api/sandbox",
		[]string{"TestD15_CrashOfTheServer", "TestCrash"}},
}
