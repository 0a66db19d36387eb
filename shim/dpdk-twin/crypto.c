/* AES-128-GCM and AES-128-GMAC on one ESP packet, by OpenSSL. */
#include "twin.h"
#include <openssl/crypto.h>
#include <string.h>

int sa_set_key(struct sa *sa, const struct session *session)
{
	EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
	if (!context)
		return -ENOMEM;
	if (EVP_CipherInit_ex(context, EVP_aes_128_gcm(), NULL, session->key, NULL, !session->is_ingress) != 1) {
		EVP_CIPHER_CTX_free(context);
		return -EIO;
	}
	sa->context = context;
	memcpy(sa->salt, session->salt, SALT_BYTES);
	sa->spi = session->spi;
	sa->is_gmac = session->is_gmac;
	sa->is_ingress = session->is_ingress;
	return 0;
}

void sa_clear(struct sa *sa)
{
	EVP_CIPHER_CTX_free(sa->context);
	OPENSSL_cleanse(sa, sizeof *sa);
}

/* Authenticates and, with GCM, encrypts or decrypts. The nonce is salt and IV (RFC 4106 4). GCM authenticates
 * SPI and number (RFC 4106 5), GMAC all before the ICV (RFC 4543 3.3). */
static bool run(struct sa *sa, uint8_t *esp, uint32_t bytes)
{
	uint8_t nonce[NONCE_BYTES];
	uint32_t text_at = ESP_HEADER_BYTES + IV_BYTES;
	int done;
	memcpy(nonce, sa->salt, SALT_BYTES);
	memcpy(nonce + SALT_BYTES, esp + ESP_HEADER_BYTES, IV_BYTES);
	if (EVP_CipherInit_ex(sa->context, NULL, NULL, NULL, nonce, -1) != 1)
		return false;
	if (sa->is_gmac)
		return EVP_CipherUpdate(sa->context, NULL, &done, esp, (int)bytes) == 1;
	return EVP_CipherUpdate(sa->context, NULL, &done, esp, ESP_HEADER_BYTES) == 1 &&
	       EVP_CipherUpdate(sa->context, esp + text_at, &done, esp + text_at, (int)(bytes - text_at)) == 1;
}

bool sa_seal(struct sa *sa, uint8_t *esp, uint32_t bytes)
{
	uint8_t none[16];
	int done;
	return run(sa, esp, bytes) && EVP_CipherFinal_ex(sa->context, none, &done) == 1 &&
	       EVP_CIPHER_CTX_ctrl(sa->context, EVP_CTRL_AEAD_GET_TAG, ICV_BYTES, esp + bytes) == 1;
}

/* As in a NIC, the text is decrypted before its ICV is known to be right, and stays in the buffer. */
bool sa_open(struct sa *sa, uint8_t *esp, uint32_t bytes)
{
	uint8_t none[16];
	int done;
	return run(sa, esp, bytes) &&
	       EVP_CIPHER_CTX_ctrl(sa->context, EVP_CTRL_AEAD_SET_TAG, ICV_BYTES, esp + bytes) == 1 &&
	       EVP_CipherFinal_ex(sa->context, none, &done) == 1;
}
