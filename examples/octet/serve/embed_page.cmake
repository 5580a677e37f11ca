# cmake -DIN=page.html -DOUT=serve_page.h -P embed_page.cmake: a file as an array of C.
file(READ ${IN} HEX HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," BYTES ${HEX})
file(WRITE ${OUT} "static const unsigned char oct_serve_page[] = {${BYTES}};\n")
