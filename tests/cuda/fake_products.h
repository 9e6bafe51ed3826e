/* What tests tell and ask the stand-in for libcublasLt.so.13 (fake_products.c). */
#ifndef FAKE_PRODUCTS_H
#define FAKE_PRODUCTS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fake_products {
  int64_t calls;    /* that may fail, as fake_fail_products counts them */
  int64_t searches; /* for an algorithm */
  int64_t products; /* asked for */
  int64_t live;     /* descriptions, layouts and preferences */
} fake_products;

/* The call of that number from now on fails, counted from 0, with this cublasStatus_t; -1 = none. */
void fake_fail_products(int64_t number, int32_t status);
fake_products fake_get_products(void);

#ifdef __cplusplus
}
#endif
#endif
