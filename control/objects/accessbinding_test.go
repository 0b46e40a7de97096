package objects

import (
	"strings"
	"testing"
)

func TestAccessBindings(t *testing.T) {
	const head = "apiVersion: heddle.io/v1alpha1\nkind: AccessBinding\nmetadata: { name: a }\nspec: "
	for spec, want := range map[string]string{
		`{ role: editor, namespaces: [shop, bank], subjects: [{ kind: User, name: alice }, { kind: Group, name: "Domain Users" }, { kind: ServiceAccount, namespace: ci, name: deployer }] }`: "",
		`{ role: admin, namespaces: ["*"], subjects: [{ kind: User, name: "1000" }] }`:                                                                                                        "",
		`{ role: edtor, namespaces: [shop], subjects: [{ kind: User, name: alice }] }`:                                                                                                        `did you mean "editor"?`,
		`{ namespaces: [shop], subjects: [{ kind: User, name: alice }] }`:                                                                                                                     `"" is not a role`,
		`{ role: editor, subjects: [{ kind: User, name: alice }] }`:                                                                                                                           `["*"] means all`,
		`{ role: editor, namespaces: [shop, "*"], subjects: [{ kind: User, name: alice }] }`:                                                                                                  "stands beside others",
		`{ role: editor, namespaces: [Shop], subjects: [{ kind: User, name: alice }] }`:                                                                                                       "spec.namespaces[0]",
		`{ role: editor, namespaces: [shop] }`:                                                                                                                                                "at least one user",
		`{ role: editor, namespaces: [shop], subjects: [{ kind: Robot, name: alice }] }`:                                                                                                      "is not a kind of subject",
		`{ role: editor, namespaces: [shop], subjects: [{ kind: User }] }`:                                                                                                                    "spec.subjects[0].name",
		`{ role: editor, namespaces: [shop], subjects: [{ kind: User, name: " alice" }] }`:                                                                                                    "is not a name",
		`{ role: editor, namespaces: [shop], subjects: [{ kind: User, name: nobody }] }`:                                                                                                      "is who workloads run as",
		`{ role: editor, namespaces: [shop], subjects: [{ kind: Group, name: "65534" }] }`:                                                                                                    "is who workloads run as",
		`{ role: editor, namespaces: [shop], subjects: [{ kind: User, name: alice, namespace: shop }] }`:                                                                                      "is for service accounts only",
		`{ role: editor, namespaces: [shop], subjects: [{ kind: ServiceAccount, name: deployer }] }`:                                                                                          "spec.subjects[0].namespace",
		`{ role: editor, namespaces: [shop], subject: [] }`:                                                                                                                                   `did you mean "subjects"?`,
	} {
		_, errs := Decode(strings.NewReader(head+spec), "a.yaml", "")
		text := ""
		for _, err := range errs {
			text += err.Error() + "\n"
		}
		if (want == "") != (text == "") || !strings.Contains(text, want) {
			t.Errorf("%s: %q, want %q", spec, text, want)
		}
	}
}
