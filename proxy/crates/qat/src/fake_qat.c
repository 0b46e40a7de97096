/*
 * A library with the part of QATlib's C interface that the proxy uses, and no device: what a device would do is done when
 * the instance is polled. It answers as a test tells it to: late, out of order, wrongly, not at all.
 *
 * The interface is written down here anew, from the headers' description, so that a C compiler says what its structures
 * look like in memory.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int32_t CpaStatus;
enum { SUCCESS = 0, FAIL = -1, RETRY = -2, INVALID_PARAM = -4 };

typedef void *CpaInstanceHandle;
typedef enum { CPA_FALSE = 0, CPA_TRUE = 1 } CpaBoolean;

typedef struct {
	uint32_t dataLenInBytes;
	uint8_t *pData;
} CpaFlatBuffer;

typedef struct {
	CpaFlatBuffer modulusN, privateExponentD;
} CpaCyRsaPrivateKeyRep1;

typedef struct {
	CpaFlatBuffer prime1P, prime2Q, exponent1Dp, exponent2Dq, coefficientQInv;
} CpaCyRsaPrivateKeyRep2;

typedef enum { CPA_CY_RSA_VERSION_TWO_PRIME = 1 } CpaCyRsaVersion;
typedef enum { CPA_CY_RSA_PRIVATE_KEY_REP_TYPE_1 = 1, CPA_CY_RSA_PRIVATE_KEY_REP_TYPE_2 } CpaCyRsaPrivateKeyRepType;

typedef struct {
	CpaCyRsaVersion version;
	CpaCyRsaPrivateKeyRepType privateKeyRepType;
	CpaCyRsaPrivateKeyRep1 privateKeyRep1;
	CpaCyRsaPrivateKeyRep2 privateKeyRep2;
} CpaCyRsaPrivateKey;

typedef struct {
	CpaCyRsaPrivateKey *pRecipientPrivateKey;
	CpaFlatBuffer inputData;
} CpaCyRsaDecryptOpData;

typedef struct {
	CpaBoolean symSupported, symDpSupported, dhSupported, dsaSupported, rsaSupported, ecSupported, ecdhSupported;
	CpaBoolean ecdsaSupported, keySupported, lnSupported, primeSupported, drbgSupported, nrbgSupported, randSupported;
	CpaBoolean kptSupported, hkdfSupported, extAlgchainSupported, ecEdMontSupported, ecSm2Supported;
} CpaCyCapabilitiesInfo;

typedef struct {
	uint16_t packageId, acceleratorId, executionEngineId, busAddress;
	uint32_t kptAcHandle;
} CpaPhysicalInstanceId;

typedef enum { CPA_ACC_SVC_TYPE_CRYPTO = 0 } CpaAccelerationServiceType;
typedef enum { CPA_OPER_STATE_DOWN = 0, CPA_OPER_STATE_UP } CpaOperationalState;

typedef struct {
	CpaAccelerationServiceType accelerationServiceType;
	uint8_t vendorName[64], partName[64], swVersion[64], instName[64], instID[128];
	CpaPhysicalInstanceId physInstId;
	uint32_t coreAffinity[4096 / 32];
	uint32_t nodeAffinity;
	CpaOperationalState operState;
	CpaBoolean requiresPhysicallyContiguousMemory, isPolled, isOffloaded;
} CpaInstanceInfo2;

typedef void (*CpaCyGenFlatBufCbFunc)(void *pCallbackTag, CpaStatus status, void *pOpdata, CpaFlatBuffer *pOut);
typedef uint64_t (*CpaVirtualToPhysical)(void *pVirtualAddr);

/* What a request is answered with. The same numbers are in testing.rs. */
enum { RIGHTLY, WRONGLY, WITH_STATUS, REFUSED, NEVER, TWICE };

struct answer {
	uint32_t kind;
	uint32_t polls; /* after which it comes; at least one */
	int32_t status;
};

struct request {
	struct answer answer;
	CpaCyGenFlatBufCbFunc callback;
	void *tag;
	const CpaCyRsaDecryptOpData *operation;
	CpaFlatBuffer *output;
};

enum { INSTANCES = 4, MOST = 256 };

static struct instance {
	pthread_mutex_t lock; /* workers may share an instance */
	int started, translated;
	struct answer script[MOST]; /* for the next requests, the first one first */
	int scripted;
	struct request requests[MOST];
	int waiting, most_waiting, taken;
} instances[INSTANCES] = {
	{.lock = PTHREAD_MUTEX_INITIALIZER},
	{.lock = PTHREAD_MUTEX_INITIALIZER},
	{.lock = PTHREAD_MUTEX_INITIALIZER},
	{.lock = PTHREAD_MUTEX_INITIALIZER},
};

static CpaStatus start_status = SUCCESS;
static uint16_t instance_count = INSTANCES;
static _Atomic int malformed;

static pthread_mutex_t memory = PTHREAD_MUTEX_INITIALIZER;
static int allocated;

static struct { uint8_t *start; size_t size; } blocks[INSTANCES * MOST];

/* Arithmetic of 64-bit words, the lowest first; numbers of at most LIMBS words. */
enum { LIMBS = 32 };
typedef unsigned __int128 wide;

static void read_number(uint64_t *out, const uint8_t *bytes, size_t limbs) {
	for (size_t i = 0; i < limbs; i++, bytes += 8) {
		uint64_t word = 0;
		for (int b = 0; b < 8; b++) word = word << 8 | bytes[b];
		out[limbs - 1 - i] = word;
	}
}

static int below(const uint64_t *a, const uint64_t *b, size_t n) {
	while (n--) if (a[n] != b[n]) return a[n] < b[n];
	return 0;
}

static uint64_t subtract(uint64_t *a, const uint64_t *b, size_t n) {
	uint64_t borrow = 0;
	for (size_t i = 0; i < n; i++) {
		wide d = (wide)a[i] - b[i] - borrow;
		a[i] = (uint64_t)d;
		borrow = (uint64_t)(d >> 64) & 1;
	}
	return borrow;
}

static uint64_t add(uint64_t *a, const uint64_t *b, size_t n) {
	uint64_t carry = 0;
	for (size_t i = 0; i < n; i++) {
		wide s = (wide)a[i] + b[i] + carry;
		a[i] = (uint64_t)s;
		carry = (uint64_t)(s >> 64);
	}
	return carry;
}

/* out = a · b / 2^(64n) modulo m, for a · b below m · 2^(64n). */
static void multiply(uint64_t *out, const uint64_t *a, const uint64_t *b, const uint64_t *m, uint64_t inverse, size_t n) {
	uint64_t t[LIMBS + 2] = {0};
	for (size_t i = 0; i < n; i++) {
		wide c = 0;
		for (size_t j = 0; j < n; j++) {
			c += (wide)a[j] * b[i] + t[j];
			t[j] = (uint64_t)c;
			c >>= 64;
		}
		c += t[n];
		t[n] = (uint64_t)c;
		t[n + 1] = (uint64_t)(c >> 64);
		uint64_t q = t[0] * inverse;
		c = (wide)q * m[0] + t[0];
		c >>= 64;
		for (size_t j = 1; j < n; j++) {
			c += (wide)q * m[j] + t[j];
			t[j - 1] = (uint64_t)c;
			c >>= 64;
		}
		c += t[n];
		t[n - 1] = (uint64_t)c;
		t[n] = t[n + 1] + (uint64_t)(c >> 64);
	}
	if (t[n] || !below(t, m, n)) subtract(t, m, n);
	memcpy(out, t, n * 8);
}

/* out = input^exponent modulo m, both of n words but the input, which has 2n. */
static void power(uint64_t *out, const uint64_t *input, const uint64_t *exponent, const uint64_t *m, size_t n) {
	uint64_t inverse = 1, r2[LIMBS] = {1}, one[LIMBS] = {1}, base[LIMBS], high[LIMBS];
	for (int i = 0; i < 6; i++) inverse *= 2 - m[0] * inverse;
	inverse = -inverse;
	for (size_t i = 0; i < 128 * n; i++) { /* 2^(128n) modulo m */
		uint64_t twice[LIMBS];
		memcpy(twice, r2, n * 8);
		if (add(r2, twice, n) || !below(r2, m, n)) subtract(r2, m, n);
	}
	/* (high · 2^(64n) + low) · 2^(64n) modulo m */
	multiply(high, input + n, r2, m, inverse, n);
	multiply(high, high, r2, m, inverse, n);
	multiply(base, input, r2, m, inverse, n);
	if (add(base, high, n) || !below(base, m, n)) subtract(base, m, n);
	multiply(out, one, r2, m, inverse, n);
	for (size_t bit = 64 * n; bit--;) {
		multiply(out, out, out, m, inverse, n);
		if (exponent[bit / 64] >> bit % 64 & 1) multiply(out, out, base, m, inverse, n);
	}
	multiply(out, out, one, m, inverse, n);
}

/* RFC 8017 section 5.1.2, step 2b. A fault in one of the two halves is the kind that gives a prime away. */
static void operate(const CpaCyRsaPrivateKeyRep2 *key, const CpaFlatBuffer *input, CpaFlatBuffer *out, int fault) {
	size_t n = key->prime1P.dataLenInBytes / 8;
	uint64_t p[LIMBS], q[LIMBS], dp[LIMBS], dq[LIMBS], coefficient[LIMBS], c[2 * LIMBS], m1[LIMBS], m2[LIMBS];
	uint64_t wide_h[2 * LIMBS] = {0}, m2_mod_p[LIMBS], h[LIMBS], one[LIMBS] = {1}, result[2 * LIMBS] = {0};
	read_number(p, key->prime1P.pData, n);
	read_number(q, key->prime2Q.pData, n);
	read_number(dp, key->exponent1Dp.pData, n);
	read_number(dq, key->exponent2Dq.pData, n);
	read_number(coefficient, key->coefficientQInv.pData, n);
	read_number(c, input->pData, 2 * n);
	power(m1, c, dp, p, n);
	power(m2, c, dq, q, n);
	if (fault) m1[n / 2] ^= 1;
	memcpy(m2_mod_p, m2, n * 8);
	if (!below(m2_mod_p, p, n)) subtract(m2_mod_p, p, n);
	if (subtract(m1, m2_mod_p, n)) add(m1, p, n);
	/* h = (m1 - m2) · coefficient modulo p: the product, raised to the power of one. */
	for (size_t i = 0; i < n; i++) {
		wide carry = 0;
		for (size_t j = 0; j < n; j++) {
			carry += (wide)m1[i] * coefficient[j] + wide_h[i + j];
			wide_h[i + j] = (uint64_t)carry;
			carry >>= 64;
		}
		wide_h[i + n] = (uint64_t)carry;
	}
	power(h, wide_h, one, p, n);
	memcpy(result, m2, n * 8);
	for (size_t i = 0; i < n; i++) {
		wide carry = 0;
		for (size_t j = 0; j < n; j++) {
			carry += (wide)h[i] * q[j] + result[i + j];
			result[i + j] = (uint64_t)carry;
			carry >>= 64;
		}
		for (size_t j = i + n; carry && j < 2 * n; j++) {
			carry += result[j];
			result[j] = (uint64_t)carry;
			carry >>= 64;
		}
	}
	for (size_t i = 0; i < 2 * n; i++)
		for (int b = 0; b < 8; b++) out->pData[16 * n - 1 - (8 * i + b)] = (uint8_t)(result[i] >> 8 * b);
}

/* The tests' hand. */

void fake_qat_setup(int32_t status, uint16_t count) { start_status = status, instance_count = count; }

int32_t fake_qat_script(uint16_t index, uint32_t kind, uint32_t polls, int32_t status) {
	struct instance *i = &instances[index];
	if (i->scripted == MOST) return FAIL;
	i->script[i->scripted++] = (struct answer){kind, polls, status};
	return SUCCESS;
}

/* Requests that wait, most that waited at once, requests that were taken, requests that were malformed (of all instances). */
void fake_qat_counts(uint16_t index, uint32_t out[4]) {
	struct instance *i = &instances[index];
	out[0] = i->waiting, out[1] = i->most_waiting, out[2] = i->taken, out[3] = malformed;
}

/* What a C compiler makes of the structures. */
void fake_qat_layout(uint32_t out[10]) {
	uint32_t all[] = {
		sizeof(CpaFlatBuffer), sizeof(CpaCyRsaPrivateKey), offsetof(CpaCyRsaPrivateKey, privateKeyRep2),
		sizeof(CpaCyRsaDecryptOpData), offsetof(CpaCyRsaDecryptOpData, inputData), sizeof(CpaCyCapabilitiesInfo),
		offsetof(CpaCyCapabilitiesInfo, rsaSupported), sizeof(CpaInstanceInfo2), offsetof(CpaInstanceInfo2, nodeAffinity),
		offsetof(CpaInstanceInfo2, isPolled),
	};
	memcpy(out, all, sizeof all);
}

/* Whether all memory that the device was given is zero, so that nothing of a key is left. */
int32_t fake_qat_memory_is_wiped(void) {
	for (int i = 0; i < allocated; i++)
		for (size_t j = 0; j < blocks[i].size; j++) if (blocks[i].start[j]) return 0;
	return 1;
}

/* The interface. */

CpaStatus icp_sal_userStart(const char *name) { return name && *name ? start_status : INVALID_PARAM; }

CpaStatus cpaCyGetNumInstances(uint16_t *count) { return *count = instance_count, SUCCESS; }

CpaStatus cpaCyGetInstances(uint16_t count, CpaInstanceHandle *out) {
	for (uint16_t i = 0; i < count; i++) out[i] = &instances[i];
	return SUCCESS;
}

CpaStatus cpaCyInstanceGetInfo2(CpaInstanceHandle handle, CpaInstanceInfo2 *info) {
	memset(info, 0, sizeof *info);
	info->operState = CPA_OPER_STATE_UP;
	info->isPolled = CPA_TRUE;
	return handle ? SUCCESS : INVALID_PARAM;
}

/* The last instance is one for symmetric ciphers. */
CpaStatus cpaCyQueryCapabilities(CpaInstanceHandle handle, CpaCyCapabilitiesInfo *info) {
	memset(info, 0, sizeof *info);
	info->symSupported = CPA_TRUE;
	info->rsaSupported = handle == &instances[INSTANCES - 1] ? CPA_FALSE : CPA_TRUE;
	return SUCCESS;
}

CpaStatus cpaCySetAddressTranslation(CpaInstanceHandle handle, CpaVirtualToPhysical translate) {
	((struct instance *)handle)->translated = translate != NULL;
	return SUCCESS;
}

CpaStatus cpaCyStartInstance(CpaInstanceHandle handle) {
	struct instance *i = handle;
	i->started = i->translated;
	return i->started ? SUCCESS : FAIL;
}

void *qaeMemAllocNUMA(size_t size, int node, size_t alignment) {
	(void)node;
	pthread_mutex_lock(&memory);
	uint8_t *start = NULL;
	if (allocated < INSTANCES * MOST) start = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
	if (start) memset(start, 0xa5, size), blocks[allocated].start = start, blocks[allocated++].size = size;
	pthread_mutex_unlock(&memory);
	return start;
}

uint64_t qaeVirtToPhysNUMA(void *address) { return (uintptr_t)address; }

static int fits(const CpaFlatBuffer *b, size_t length) {
	int found = 0; /* whether it is memory of the device's */
	pthread_mutex_lock(&memory);
	for (int i = 0; i < allocated; i++)
		found |= b->pData >= blocks[i].start && b->pData + length <= blocks[i].start + blocks[i].size;
	pthread_mutex_unlock(&memory);
	return found && b->dataLenInBytes == length;
}

static int well_formed(const CpaCyRsaDecryptOpData *operation, const CpaFlatBuffer *out) {
	const CpaCyRsaPrivateKey *key = operation->pRecipientPrivateKey;
	if (key->version != CPA_CY_RSA_VERSION_TWO_PRIME || key->privateKeyRepType != CPA_CY_RSA_PRIVATE_KEY_REP_TYPE_2) return 0;
	const CpaCyRsaPrivateKeyRep2 *k = &key->privateKeyRep2;
	size_t half = k->prime1P.dataLenInBytes;
	return (half == 128 || half == 192 || half == 256) && fits(&k->prime1P, half) && fits(&k->prime2Q, half) &&
	       fits(&k->exponent1Dp, half) && fits(&k->exponent2Dq, half) && fits(&k->coefficientQInv, half) &&
	       fits(&operation->inputData, 2 * half) && fits(out, 2 * half);
}

static CpaStatus take(struct instance *i, CpaCyGenFlatBufCbFunc callback, void *tag,
                      const CpaCyRsaDecryptOpData *operation, CpaFlatBuffer *out) {
	if (!i->started || !callback || !well_formed(operation, out)) {
		malformed++;
		return INVALID_PARAM;
	}
	struct answer answer = {RIGHTLY, 1, SUCCESS};
	if (i->scripted) {
		answer = i->script[0];
		memmove(i->script, i->script + 1, --i->scripted * sizeof answer);
	}
	if (answer.kind == REFUSED) return answer.status;
	if (i->waiting == MOST) return RETRY;
	i->requests[i->waiting++] = (struct request){answer, callback, tag, operation, out};
	if (i->waiting > i->most_waiting) i->most_waiting = i->waiting;
	i->taken++;
	return SUCCESS;
}

CpaStatus cpaCyRsaDecrypt(CpaInstanceHandle handle, CpaCyGenFlatBufCbFunc callback, void *tag,
                          const CpaCyRsaDecryptOpData *operation, CpaFlatBuffer *out) {
	struct instance *i = handle;
	pthread_mutex_lock(&i->lock);
	CpaStatus status = take(i, callback, tag, operation, out);
	pthread_mutex_unlock(&i->lock);
	return status;
}

/* The newest are answered first. */
CpaStatus icp_sal_CyPollInstance(CpaInstanceHandle handle, uint32_t quota) {
	struct instance *i = handle;
	(void)quota;
	int answered = 0;
	pthread_mutex_lock(&i->lock);
	for (int at = i->waiting - 1; at >= 0; at--) {
		struct request r = i->requests[at];
		if (r.answer.kind == NEVER) continue;
		if (r.answer.polls > 1) {
			i->requests[at].answer.polls--;
			continue;
		}
		memmove(i->requests + at, i->requests + at + 1, (--i->waiting - at) * sizeof r);
		answered++;
		if (r.answer.kind != WITH_STATUS)
			operate(&r.operation->pRecipientPrivateKey->privateKeyRep2, &r.operation->inputData, r.output,
			        r.answer.kind == WRONGLY);
		CpaStatus status = r.answer.kind == WITH_STATUS ? r.answer.status : SUCCESS;
		r.callback(r.tag, status, (void *)r.operation, r.output);
		if (r.answer.kind == TWICE) r.callback(r.tag, status, (void *)r.operation, r.output);
	}
	pthread_mutex_unlock(&i->lock);
	return answered ? SUCCESS : RETRY;
}
