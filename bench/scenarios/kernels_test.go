package scenarios

import (
	"math"
	"testing"
)

func TestOpensslRates(t *testing.T) {
	rates, err := opensslRates([]byte("+DTP:2048:private:rsa:1\n+R1:4406:2048:1.00\n+F2:2:2048:4000.5:61300.0\n+F2:3:3072:800.0:33000.0\n" +
		"+R5:14:256:1.00\n+F4:3:256:42581.5:14927.3\n"))
	if err != nil {
		t.Fatal(err)
	}
	for figure, want := range map[string]float64{
		"rsa2048_sign_per_second": 4000.5, "rsa3072_sign_per_second": 800, "ecdsa_p256_sign_per_second": 42581.5,
	} {
		if got := rates[figure]; math.Abs(got-want) > 1e-6 {
			t.Errorf("%s = %v, want %v", figure, got, want)
		}
	}
	for _, output := range []string{"", "+F2:2:2048:inf?:1\n", "+F2:2:2048:0.000250:0.000015\n", "speed: unknown algorithm\n"} {
		if rates, err := opensslRates([]byte(output)); err == nil {
			t.Errorf("%q gave %v, want an error", output, rates)
		}
	}
}
