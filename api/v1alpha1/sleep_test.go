// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"strings"
	"testing"

	"wangell.loutres.me/api/v1alpha1"
)

func TestSleepIsValidated(t *testing.T) {
	const from, zone = "spec.sleep.schedule[0].from: ", "spec.sleep.schedule[0].timeZone: "
	// period is a schedule of one period.
	period := func(from, rest string) string {
		return `sleep: {schedule: [{from: "` + from + `", to: "0 9 * * *"` + rest + `}]}`
	}
	for spec, want := range map[string]string{
		`sleep: {}`: "", period("@daily", ""): "",
		period("0 8 * * MON-FRI", ", timeZone: Europe/Paris"): "",
		`{minReplicas: 1, sleep: {predict: true}}`:            "spec.sleep.predict: has no effect beside minReplicas: 1",
		period("", ""):                        from + "missing: write a cron expression such as",
		period("0 8 * *", ""):                 from + "expected exactly 5 fields, found 4: [0 8 * *]: write a cron",
		period("0 0 30 2 *", ""):              from + `"0 0 30 2 *" is a time that never comes`,
		period("0 25 * * *", ""):              from + "end of range (25)",
		period("TZ=UTC 0 8 * * *", ""):        from + "want minute, hour",
		period("TZ=", ""):                     from + "want minute, hour",
		period("@every 1h", ""):               from + "want minute, hour",
		period("@daily", `, timeZone: X`):     zone + `there is no time zone "X"`,
		period("@daily", `, timeZone: Local`): zone + `there is no time zone "Local"`,
		`sleep: {schedule: [` + strings.Repeat(`{from: "@daily", to: "@weekly"},`, 17) + `]}`: "spec.sleep.schedule: " +
			"want at most 16 periods, got 17",
	} {
		s := service(t, spec)
		for _, errs := range []v1alpha1.ValidationErrors{v1alpha1.Validate(s), v1alpha1.ValidateCluster(s)} {
			got := errs.Error()
			if (want == "") != (got == "") || !strings.HasPrefix(got, want) || strings.Contains(got, "\n") {
				t.Errorf("%s:\n got %q\nwant %q", spec, got, want)
			}
		}
	}
}

func TestPreparedPodsAreForOneMachineAndForServicesThatMayHaveTwo(t *testing.T) {
	const field = "spec.sleep.prepared: "
	for spec, want := range map[string]string{
		`sleep: {prepared: 1}`:                             "",
		`sleep: {prepared: 17}`:                            field + "want a number from 0 to 16, got 17",
		`{sleep: {prepared: 1}, updateStrategy: Recreate}`: field + "needs updateStrategy: RollingUpdate",
		`{sleep: {prepared: 1}, imagePull: {mode: Lazy}}`:  field + "needs the whole image, but imagePull.mode is Lazy",
		`{sleep: {prepared: 1}, volumes: [{name: a, persistent: {}}], volumeMounts: [{name: a, mountPath: /a}]}`: field +
			"cannot hold persistent volumes",
	} {
		got := v1alpha1.Validate(service(t, spec)).Error()
		if (want == "") != (got == "") || !strings.HasPrefix(got, want) || strings.Contains(got, "\n") {
			t.Errorf("%s:\n got %q\nwant %q", spec, got, want)
		}
	}
	want := field + "is not available on Kubernetes"
	if got := v1alpha1.ValidateCluster(service(t, `sleep: {prepared: 1}`)).Error(); !strings.HasPrefix(got, want) {
		t.Errorf("got %q", got)
	}
}

func FuzzTimesOfAPeriod(f *testing.F) {
	f.Add("0 8 * * MON-FRI", "*/5 1-3 L * ?", "Europe/Paris")
	f.Fuzz(func(_ *testing.T, from, to, zone string) {
		p := v1alpha1.WarmPeriod{From: from, To: to, TimeZone: zone}
		_, _, _, _ = p.Times()
	})
}
